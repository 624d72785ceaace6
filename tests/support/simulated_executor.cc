#include "tests/support/simulated_executor.h"

#include <algorithm>
#include <utility>

namespace gdn {

SimulatedExecutor::~SimulatedExecutor() {
  CheckUnused();
  if (!ready_.empty() || !timers_.empty()) EndProcess("an executor is destroyed while flows or timers are left on it");
}

void SimulatedExecutor::CheckThread() const {
  if (std::this_thread::get_id() != thread_) EndProcess("a SimulatedExecutor is used by a second thread");
}

void SimulatedExecutor::Post(Flow& flow) {
  CheckThread();
  ready_.push_back(&flow);
}

void SimulatedExecutor::SetTimer(Timer& timer) {
  CheckThread();
  timers_.Push(timer);
}

void SimulatedExecutor::ClearTimer(Timer& timer) {
  CheckThread();
  timers_.Remove(timer);
}

bool SimulatedExecutor::RunReady() {
  CheckThread();
  if (ready_.empty()) return false;
  std::swap(ready_[Choose(ready_.size())], ready_.back());
  Flow* flow = ready_.back();
  ready_.pop_back();
  flow->Run();
  return true;
}

bool SimulatedExecutor::RunOne() {
  if (RunReady()) return true;
  if (timers_.empty()) return false;
  now_ = std::max(now_, timers_.first_due());
  FlowQueue resumed;
  timers_.PopDue(now_, resumed);
  resumed.PostAll();
  RunReady();  // nothing is ready here if they go on at other executors
  return true;
}

void SimulatedExecutor::RunFor(absl::Duration time) {
  const SteadyTime end = now_ + time;
  while (!ready_.empty() || timers_.first_due() <= end) {
    if (!RunOne()) break;
  }
  now_ = std::max(now_, end);
}

void SimulatedExecutor::RunUntilIdle() {
  while (RunOne()) {
  }
}

void SimulatedExecutor::BlockUntil(absl::FunctionRef<bool()> over, absl::FunctionRef<void()> /*block*/) {
  while (!over()) {
    if (!RunOne()) EndProcess("a simulated wait never ends: flows wait, and nothing can run");
  }
}

}  // namespace gdn
