// The server's side of one client's ring (ring/ring_layout.h): its memory, its submissions, its completions.
//
// The memory is a memfd that cannot shrink, so no access to it can fail. The client can change every byte at any time:
// submissions are copied before they are checked, and nothing is read from the memory twice.
// Thread safety: Take, Waiting and SetWaits are for one thread, the poller. The others are safe from any thread.
// Ownership: owns the memory and the descriptors; the client has its own copies of them.
//
//   GDN_ASSIGN_OR_RETURN(std::unique_ptr<Ring> ring, Ring::Make(64, 1 << 20));
//   gdn_ring_submission submission;
//   while (ring->Take(submission) == Ring::Took::kOne) Answer(submission);
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/owned_fd.h"
#include "ring/ring_layout.h"

namespace gdn {

class Ring {
 public:
  // Makes a ring of `entries` submissions, a power of two of at most GDN_RING_MOST_ENTRIES, and an area of `area_bytes`
  // bytes, 1 or more. All memory is taken at once. RESOURCE_EXHAUSTED (SHARED_MEMORY_EXHAUSTED) if the system refuses.
  static absl::StatusOr<std::unique_ptr<Ring>> Make(uint32_t entries, int64_t area_bytes);
  // Returns the bytes of such a ring's memory.
  static int64_t MemoryBytes(uint32_t entries, int64_t area_bytes);
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring();

  // The descriptors for the client: the memory, the server's eventfd and the client's.
  std::array<int, GDN_RING_FDS> fds() const { return {memory_.get(), server_wake_.get(), client_wake_.get()}; }
  // The eventfd on which the client announces submissions while SetWaits(true) holds.
  int wake_fd() const { return server_wake_.get(); }

  enum class Took { kNothing, kOne, kBroken };
  // Copies the next submission. kBroken: the client claims more submissions than there are entries.
  Took Take(gdn_ring_submission& to);
  bool Waiting() const;       // true if a submission waits
  void SetWaits(bool waits);  // false also takes the announcements that have come

  // True if these bytes are inside the area.
  bool Contains(uint64_t offset, uint64_t bytes) const {
    return offset <= area_bytes_ && bytes <= area_bytes_ - offset;
  }
  // The bytes at `offset` of the area, which the client may change meanwhile. Contains must be true for all that is
  // used.
  char* At(uint64_t offset) const { return area_ + offset; }
  uint64_t area_bytes() const { return area_bytes_; }
  uint32_t entries() const { return entries_; }

  // Tells the client that its submission has ended. Does nothing after End.
  void Complete(const gdn_ring_completion& completion);
  // No submission is to be taken any more; the calls in flight go on.
  void StopTaking() { stopped_.store(true); }
  bool stopped() const { return stopped_.load(); }
  // Ends the ring for the client: `why` is GDN_RING_ENDED or GDN_RING_BROKEN. The first call decides.
  void End(uint32_t why);
  bool ended() const { return end_.load(std::memory_order_acquire) != GDN_RING_OPEN; }
  bool broken() const { return end_.load(std::memory_order_acquire) == GDN_RING_BROKEN; }
  // Keeps the client's connection (RingDoor) until End, so that each side sees the other's end.
  void KeepPeer(OwnedFd peer);

 private:
  Ring(OwnedFd memory, OwnedFd server_wake, OwnedFd client_wake, char* mapped, uint64_t bytes, uint32_t entries);
  void WakeClient();

  const OwnedFd memory_, server_wake_, client_wake_;
  char* const mapped_;
  const uint64_t bytes_;
  const uint32_t entries_;
  gdn_ring_header& header_;
  gdn_ring_submission* const submissions_;
  gdn_ring_completion* const completions_;
  char* const area_;
  const uint64_t area_bytes_;
  uint32_t taken_ = 0;  // the poller's; the client's copy is header_.taken
  std::atomic<bool> stopped_{false};
  std::atomic<uint32_t> end_{GDN_RING_OPEN};  // the client's copy is header_.ended
  absl::Mutex mu_;
  uint32_t completed_ ABSL_GUARDED_BY(mu_) = 0;
  OwnedFd peer_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
