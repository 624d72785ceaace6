#include "base/task/timer_heap.h"

#include <utility>

#include "base/task/waiter.h"

namespace gdn {

SteadyTime TimerHeap::first_due() const {
  return timers_.empty() ? SteadyTime::InfiniteFuture() : timers_.front()->due;
}

void TimerHeap::Push(Timer& timer) {
  timer.number = pushed_++;
  timers_.push_back(nullptr);
  Put(&timer, timers_.size() - 1);
  Up(timer.place);
}

void TimerHeap::Remove(Timer& timer) {
  const size_t place = std::exchange(timer.place, Timer::kNotSet);
  if (place == Timer::kNotSet) return;
  Timer* last = timers_.back();
  timers_.pop_back();
  if (last == &timer) return;
  Put(last, place);
  Up(place);
  Down(last->place);
}

bool TimerHeap::PopDue(SteadyTime now, FlowQueue& resumed) {
  if (timers_.empty() || timers_.front()->due > now) return false;
  Timer& timer = *timers_.front();
  Remove(timer);
  resumed.Push(timer.waiter->End(WaitEnd::kLate).resume);
  return true;
}

bool TimerHeap::Before(const Timer& a, const Timer& b) {
  return a.due < b.due || (a.due == b.due && a.number < b.number);
}

void TimerHeap::Put(Timer* timer, size_t place) {
  timers_[place] = timer;
  timer->place = place;
}

void TimerHeap::Up(size_t place) {
  Timer* timer = timers_[place];
  while (place > 0 && Before(*timer, *timers_[(place - 1) / 2])) {
    Put(timers_[(place - 1) / 2], place);
    place = (place - 1) / 2;
  }
  Put(timer, place);
}

void TimerHeap::Down(size_t place) {
  Timer* timer = timers_[place];
  for (size_t child = 2 * place + 1; child < timers_.size(); child = 2 * place + 1) {
    if (child + 1 < timers_.size() && Before(*timers_[child + 1], *timers_[child])) ++child;
    if (!Before(*timers_[child], *timer)) break;
    Put(timers_[child], place);
    place = child;
  }
  Put(timer, place);
}

}  // namespace gdn
