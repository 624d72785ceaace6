// Timers by the time at which they are due, for executors.
//
// Thread safety: none; its user locks. Ownership: borrows timers, which must be removed before they are destroyed.
//
//   heap.Push(timer);
//   while (heap.PopDue(now, resumed)) {}   // ends the waits of those that are due
//   heap.Remove(timer);
#pragma once

#include <cstdint>
#include <vector>

#include "base/steady_clock.h"
#include "base/task/executor.h"

namespace gdn {

class TimerHeap {
 public:
  bool empty() const { return timers_.empty(); }
  // Due time of the first timer; InfiniteFuture if there is none.
  SteadyTime first_due() const;
  void Push(Timer& timer);
  // Does nothing if the timer is not here.
  void Remove(Timer& timer);
  // Takes the first timer if it is due and ends its wait. The flow that goes on, if there is one, is put into
  // `resumed`. Timers with the same time come in the order in which they were pushed. False if none is due.
  bool PopDue(SteadyTime now, FlowQueue& resumed);

 private:
  static bool Before(const Timer& a, const Timer& b);
  void Put(Timer* timer, size_t place);
  void Up(size_t place);
  void Down(size_t place);

  std::vector<Timer*> timers_;
  uint64_t pushed_ = 0;
};

}  // namespace gdn
