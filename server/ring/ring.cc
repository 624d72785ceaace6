#include "server/ring/ring.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

absl::Status Refused(std::string_view what, int64_t bytes, int error) {
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kSharedMemoryExhausted,
                   StrCat("the system gives no ring of ", bytes, " bytes: ", what, ": ", std::strerror(error),
                          "; send steps in messages"),
                   {{"needed", StrCat(bytes)}});
}

}  // namespace

int64_t Ring::MemoryBytes(uint32_t entries, int64_t area_bytes) {
  return static_cast<int64_t>(gdn_ring_area_offset(entries)) + area_bytes;
}

absl::StatusOr<std::unique_ptr<Ring>> Ring::Make(uint32_t entries, int64_t area_bytes) {
  const int64_t bytes = MemoryBytes(entries, area_bytes);
  OwnedFd memory(memfd_create("gdn-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) return Refused("memfd_create", bytes, errno);
  // posix_fallocate takes the memory now; later it could only end in a signal.
  if (const int error = posix_fallocate(memory.get(), 0, bytes); error != 0) {
    return Refused("posix_fallocate", bytes, error);
  }
  if (fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Refused("F_ADD_SEALS", bytes, errno);
  }
  OwnedFd server_wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), client_wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!server_wake.valid() || !client_wake.valid()) return Refused("eventfd", bytes, errno);
  void* const mapped =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), /*offset=*/0);
  if (mapped == MAP_FAILED) return Refused("mmap", bytes, errno);
  return std::unique_ptr<Ring>(new Ring(std::move(memory), std::move(server_wake), std::move(client_wake),
                                        static_cast<char*>(mapped), static_cast<uint64_t>(bytes), entries));
}

Ring::Ring(OwnedFd memory, OwnedFd server_wake, OwnedFd client_wake, char* mapped, uint64_t bytes, uint32_t entries)
    : memory_(std::move(memory)),
      server_wake_(std::move(server_wake)),
      client_wake_(std::move(client_wake)),
      mapped_(mapped),
      bytes_(bytes),
      entries_(entries),
      header_(*reinterpret_cast<gdn_ring_header*>(mapped)),
      submissions_(reinterpret_cast<gdn_ring_submission*>(mapped + gdn_ring_submissions_offset())),
      completions_(reinterpret_cast<gdn_ring_completion*>(mapped + gdn_ring_completions_offset(entries))),
      area_(mapped + gdn_ring_area_offset(entries)),
      area_bytes_(bytes - gdn_ring_area_offset(entries)) {
  header_.magic = GDN_RING_MAGIC;
  header_.version = GDN_RING_VERSION;
  header_.entries = entries;
  header_.bytes = bytes;
  header_.area_offset = gdn_ring_area_offset(entries);
  header_.area_bytes = area_bytes_;
  GDN_RING_STORE(header_.server_waits, 1);  // the poller does not look at it until it is told to
}

Ring::~Ring() {
  End(GDN_RING_ENDED);
  munmap(mapped_, bytes_);
}

bool Ring::Waiting() const { return GDN_RING_LOAD(header_.submitted) != taken_; }

Ring::Took Ring::Take(gdn_ring_submission& to) {
  const uint32_t waiting = GDN_RING_LOAD(header_.submitted) - taken_;
  if (waiting == 0) return Took::kNothing;
  if (waiting > entries_) return Took::kBroken;
  std::memcpy(&to, &submissions_[taken_ % entries_], sizeof(to));
  GDN_RING_STORE(header_.taken, ++taken_);
  return Took::kOne;
}

void Ring::SetWaits(bool waits) {
  GDN_RING_STORE(header_.server_waits, waits ? 1 : 0);
  if (waits) return;
  uint64_t announced = 0;
  // None may have come: then there is nothing to read, which is no error.
  static_cast<void>(!read(server_wake_.get(), &announced, sizeof(announced)));
}

void Ring::WakeClient() {
  const uint64_t one = 1;
  // A client that leaves its announcements unread until no more fit has been told already.
  static_cast<void>(!write(client_wake_.get(), &one, sizeof(one)));
}

void Ring::Complete(const gdn_ring_completion& completion) {
  absl::MutexLock lock(&mu_);
  if (ended()) return;
  std::memcpy(&completions_[completed_ % entries_], &completion, sizeof(completion));
  GDN_RING_STORE(header_.completed, ++completed_);
  if (__atomic_exchange_n(&header_.client_waits.value, 0, __ATOMIC_SEQ_CST) != 0) WakeClient();
}

void Ring::End(uint32_t why) {
  StopTaking();
  absl::MutexLock lock(&mu_);
  if (ended()) return;
  end_.store(why, std::memory_order_release);
  GDN_RING_STORE(header_.ended, why);
  WakeClient();
  peer_ = OwnedFd();
}

void Ring::KeepPeer(OwnedFd peer) {
  absl::MutexLock lock(&mu_);
  if (!ended()) peer_ = std::move(peer);
}

}  // namespace gdn
