// The thread that looks at all rings for submissions.
//
// It takes at most one submission of a ring a turn and looks for announcements after each, so a client waits for one or
// two submissions of each other, however busy these are. If it has found none for `spin`, it sleeps until a client
// announces one: idle clients cost no processor time. A spin that finds nothing halves the next one, down to a
// sixteenth, and one that finds something restores it.
// Thread safety: safe from any thread. Ownership: shares the rings that were added until they have ended; the
// destructor ends the thread, and a PolledRing is not called any more then.
//
//   GDN_ASSIGN_OR_RETURN(std::unique_ptr<RingPoller> poller, RingPoller::Start(absl::Microseconds(50)));
//   GDN_RETURN_IF_ERROR(poller->Add(calls));
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/owned_fd.h"
#include "server/ring/ring.h"

namespace gdn {

// A ring and what answers its submissions. Called on the poller's thread alone.
class PolledRing {
 public:
  virtual ~PolledRing() = default;
  virtual Ring& ring() = 0;
  // Begins to answer a submission, and must not block. `alone`: no other ring was found to have one that waits.
  virtual void Serve(const gdn_ring_submission& submission, bool alone) = 0;
};

class RingPoller {
 public:
  // `spin`: how long the thread looks for submissions before it sleeps; 0: not at all. UNAVAILABLE if the system has no
  // descriptors or threads.
  static absl::StatusOr<std::unique_ptr<RingPoller>> Start(absl::Duration spin);
  RingPoller(const RingPoller&) = delete;
  RingPoller& operator=(const RingPoller&) = delete;
  ~RingPoller();

  // Looks at this ring from now on, until it is stopped. RESOURCE_EXHAUSTED (SHARED_MEMORY_EXHAUSTED) if the system
  // watches no more descriptors.
  absl::Status Add(std::shared_ptr<PolledRing> ring);
  // Stops the ring and forgets it. Waits for the submission that is being served; afterwards the ring is not called any
  // more. Not for the poller's own thread.
  void Remove(PolledRing& ring);

  // Counts the rings that the poller looks at now, and since the start rings that clients broke and submissions.
  struct Counts {
    int64_t rings = 0, broken = 0, submissions = 0;
  };
  Counts counts() const;

 private:
  RingPoller(OwnedFd epoll, OwnedFd stop, absl::Duration spin);
  void Run();
  // Takes one submission of each active ring. Returns true if there was one.
  bool TakeTurn();
  void Serve(PolledRing& polled, bool alone);
  // Sleeps until a ring has a submission. Returns false if the thread shall end.
  bool Sleep();
  // Makes the rings active that were announced, after waiting for one, `timeout_ms` at most (-1: without a limit).
  // Returns false if the thread shall end.
  bool Awaken(int timeout_ms);

  const OwnedFd epoll_;
  const OwnedFd stop_;  // an eventfd; readable: the thread shall end
  const absl::Duration spin_;
  // Rings that were announced, and are looked at every turn; the others are asleep. The thread's own.
  std::vector<std::shared_ptr<PolledRing>> active_;
  std::atomic<const PolledRing*> served_{nullptr};  // the ring that may be called right now
  std::atomic<int64_t> broken_{0}, submissions_{0};
  mutable absl::Mutex mu_;
  uint64_t added_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint64_t, std::shared_ptr<PolledRing>> rings_ ABSL_GUARDED_BY(mu_);  // by number of adding
  std::thread thread_;
};

}  // namespace gdn
