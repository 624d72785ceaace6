// A client's side of a ring without the client's code: for tests that write to it what they like.
//
// Thread safety: for one thread, but its memory may be written by others. Ownership: owns the mapping, its descriptors
// and the call that keeps the ring. The stub must outlive it.
//
//   const std::unique_ptr<RawRing> ring = RawRing::Open(stub, std::make_unique<grpc::ClientContext>());
//   ring->Submit(submission);
//   EXPECT_TRUE(ring->EndsAs(GDN_RING_BROKEN));
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/owned_fd.h"
#include "client/cpp/share_memory_call.h"
#include "ring/ring_layout.h"

namespace gdn {

class RawRing {
 public:
  static constexpr uint32_t kEntries = 16;
  static constexpr int64_t kAreaBytes = 64 << 10;

  // Returns null if the server gives no ring. `context`: of the call that keeps it.
  static std::unique_ptr<RawRing> Open(v1::GdnService::StubInterface& stub,
                                       std::unique_ptr<grpc::ClientContext> context) {
    v1::ShareMemoryRequest request;
    request.set_bytes(kAreaBytes);
    request.set_ring_entries(kEntries);
    std::unique_ptr<RawRing> made(new RawRing());
    auto keeper = ShareMemoryCall::Start(stub, std::move(context), request);
    if (!keeper.ok()) return nullptr;
    made->keeper_ = *std::move(keeper);
    const auto response = made->keeper_->WaitForResponse(absl::Seconds(10));
    if (!response.ok() || !made->Map(response->ring())) return nullptr;
    return made;
  }
  RawRing(const RawRing&) = delete;
  RawRing& operator=(const RawRing&) = delete;
  ~RawRing() {
    if (mapped_ != nullptr) munmap(mapped_, bytes_);
  }

  // The whole memory, from the header to the area's end.
  char* memory() const { return mapped_; }
  size_t bytes() const { return bytes_; }
  int memory_fd() const { return memory_.get(); }
  gdn_ring_header& header() const { return *reinterpret_cast<gdn_ring_header*>(mapped_); }
  char* area() const { return mapped_ + gdn_ring_area_offset(kEntries); }
  // Returns the completion of this number, from 0 on.
  gdn_ring_completion completion(uint32_t number) const {
    const auto* const all = reinterpret_cast<gdn_ring_completion*>(mapped_ + gdn_ring_completions_offset(kEntries));
    return all[number % kEntries];
  }
  // Puts the submission at its place and announces it, whatever it holds.
  void Submit(const gdn_ring_submission& submission) const {
    const uint32_t at = GDN_RING_LOAD(header().submitted);
    auto* const submissions = reinterpret_cast<gdn_ring_submission*>(mapped_ + gdn_ring_submissions_offset());
    submissions[at % kEntries] = submission;
    GDN_RING_STORE(header().submitted, at + 1);
    Announce(1);
  }
  // Adds `count` to the eventfd on which the server sleeps; nothing if it cannot hold so much.
  void Announce(uint64_t count) const { static_cast<void>(!write(server_wake_.get(), &count, sizeof(count))); }
  // Closes the connection to the server's socket. The ring lives on.
  void CloseConnection() { peer_ = OwnedFd(); }
  // Ends the call that keeps the ring.
  void Leave() { keeper_ = nullptr; }

  // Waits up to ten seconds.
  static bool Becomes(absl::FunctionRef<bool()> what) {
    for (int i = 0; i < 10'000; ++i) {
      if (what()) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  }
  bool EndsAs(uint32_t why) const {
    return Becomes([&] { return GDN_RING_LOAD(header().ended) == why; });
  }

 private:
  RawRing() = default;

  bool Map(const v1::Ring& ring) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    ring.socket_path().copy(address.sun_path, sizeof(address.sun_path) - 1);
    peer_ = OwnedFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    std::array<int, GDN_RING_FDS> fds = {};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(fds))> control = {};
    char byte = 0;
    iovec data = {&byte, 1};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const auto token_bytes = static_cast<ssize_t>(ring.token().size());
    if (connect(peer_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
        send(peer_.get(), ring.token().data(), ring.token().size(), MSG_NOSIGNAL) != token_bytes) {
      return false;
    }
    ssize_t got = -1;
    do {
      got = recvmsg(peer_.get(), &message, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);  // a fuzzer has a timer
    if (got != 1 || CMSG_FIRSTHDR(&message) == nullptr) return false;
    std::memcpy(fds.data(), CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fds));
    memory_ = OwnedFd(fds[0]);
    server_wake_ = OwnedFd(fds[1]);
    client_wake_ = OwnedFd(fds[2]);
    bytes_ = gdn_ring_area_offset(kEntries) + kAreaBytes;
    void* const mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), /*offset=*/0);
    if (mapped != MAP_FAILED) mapped_ = static_cast<char*>(mapped);
    return mapped_ != nullptr;
  }

  std::unique_ptr<ShareMemoryCall> keeper_;
  OwnedFd peer_, memory_, server_wake_, client_wake_;
  char* mapped_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace gdn
