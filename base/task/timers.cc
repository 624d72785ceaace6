#include "base/task/timers.h"

#include "base/task/waiter.h"

namespace gdn {

SteadyTime Timers::first_due() const {
  return timers_.empty() ? SteadyTime::InfiniteFuture() : (*timers_.begin())->due;
}

void Timers::Push(Timer& timer) {
  timer.number = ++pushed_;
  timers_.insert(&timer);
}

void Timers::PopDue(SteadyTime now, FlowQueue& resumed) {
  while (!timers_.empty() && first_due() <= now) {
    Waiter& waiter = *timers_.extract(timers_.begin()).value()->waiter;
    resumed.Push(waiter.End(WaitEnd::kLate).resume);
  }
}

}  // namespace gdn
