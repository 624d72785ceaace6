#include "base/task/thread_executor.h"

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"
#include "base/threads/this_thread.h"

namespace gdn {
namespace {

// The longest sleep of the timers' thread. It keeps sums of times far from overflow.
constexpr absl::Duration kLongestSleep = absl::Hours(1);

}  // namespace

ThreadExecutor::ThreadExecutor(const ThreadExecutorOptions& options) {
  for (int i = 0; i < std::max(options.threads, 1); ++i) {
    threads_.emplace_back([this, name = options.name] {
      NameThisThread(name);
      RunFlows();
    });
  }
  threads_.emplace_back([this] {
    NameThisThread("gdn-timers");
    RunTimers();
  });
}

ThreadExecutor::~ThreadExecutor() {
  CheckUnused();
  {
    const std::lock_guard lock(mu_);
    stop_ = true;
    posted_.notify_all();
  }
  {
    const std::lock_guard lock(timers_mu_);
    timers_stop_ = true;
    sooner_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  if (!flows_.empty() || !timers_.empty()) EndProcess("an executor is destroyed while flows or timers are left on it");
}

void ThreadExecutor::Post(Flow& flow) {
  const std::lock_guard lock(mu_);
  flows_.Push(&flow);
  posted_.notify_one();  // with the mutex: the executor may be gone without it
}

void ThreadExecutor::RunFlows() {
  std::unique_lock lock(mu_);
  for (;;) {
    posted_.wait(lock, [this] { return stop_ || !flows_.empty(); });
    Flow* flow = flows_.Pop();
    if (flow == nullptr) return;
    lock.unlock();
    flow->Run();
    lock.lock();
  }
}

void ThreadExecutor::SetTimer(Timer& timer) {
  const std::lock_guard lock(timers_mu_);
  timers_.Push(timer);
  if (timer.due < wakes_at_) sooner_.notify_one();
}

void ThreadExecutor::ClearTimer(Timer& timer) {
  // The timers' thread is not woken. It wakes at the old time, so that waits that end early cost no wake-ups.
  const std::lock_guard lock(timers_mu_);
  timers_.Remove(timer);
}

void ThreadExecutor::RunTimers() {
  std::unique_lock lock(timers_mu_);
  while (!timers_stop_) {
    const SteadyTime now = Now();
    FlowQueue resumed;
    timers_.PopDue(now, resumed);
    if (!resumed.empty()) {
      lock.unlock();
      resumed.PostAll();
      lock.lock();
      continue;
    }
    wakes_at_ = std::min(timers_.first_due(), now + kLongestSleep);
    sooner_.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(wakes_at_.ToNanos())));
    wakes_at_ = SteadyTime::InfinitePast();  // awake: looks at all timers before it sleeps
  }
}

}  // namespace gdn
