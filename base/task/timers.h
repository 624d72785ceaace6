// Timers by the time at which they are due, for executors.
//
// Thread safety: none; its user locks. Ownership: borrows timers, which must be removed before they are destroyed.
//
//   timers.Push(timer);
//   timers.PopDue(now, resumed);  // ends the waits of those that are due
//   timers.Remove(timer);
#pragma once

#include <cstdint>
#include <set>

#include "base/task/executor.h"
#include "base/task/frame_pool.h"
#include "base/threads/steady_clock.h"

namespace gdn {

class Timers {
 public:
  bool empty() const { return timers_.empty(); }
  // Due time of the first timer; InfiniteFuture if there is none.
  SteadyTime first_due() const;
  void Push(Timer& timer);
  // Removes the timer. Does nothing if it was not pushed, or has been popped.
  void Remove(Timer& timer) { timers_.erase(&timer); }
  // Removes the timers that are due at `now`, those with the same time in the order in which they were pushed, and ends
  // their waits. Puts the flows that continue into `resumed`; the caller posts them.
  void PopDue(SteadyTime now, FlowQueue& resumed);

 private:
  struct Earlier {
    bool operator()(const Timer* a, const Timer* b) const {
      return a->due < b->due || (a->due == b->due && a->number < b->number);
    }
  };
  std::set<Timer*, Earlier, FrameAllocator<Timer*>> timers_;
  uint64_t pushed_ = 0;
};

}  // namespace gdn
