#include "base/threads/task_queue.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "base/threads/steady_clock.h"
#include "base/threads/this_thread.h"

namespace gdn {
namespace {

constexpr double kShortest = 1e-7;  // seconds: no task counts as none

}  // namespace

TaskQueue::TaskQueue(const TaskQueueOptions& options) {
  for (int i = 0; i < options.threads; ++i) {
    threads_.emplace_back([this, options] { Loop(options); });
  }
}

TaskQueue::~TaskQueue() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void TaskQueue::Post(Task task, const Turn& turn) {
  absl::MutexLock lock(&mu_);
  tasks_.Push(turn, std::move(task));
}

void TaskQueue::Drain() {
  absl::MutexLock lock(&mu_);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return tasks_.empty() && running_ == 0; };
  mu_.Await(absl::Condition(&idle));
}

size_t TaskQueue::waiting() const {
  absl::MutexLock lock(&mu_);
  return tasks_.size();
}

void TaskQueue::Loop(const TaskQueueOptions& options) {
  NameThisThread(options.name);
  LowerThisThread(options.niceness);
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || !tasks_.empty(); };
  for (;;) {
    std::optional<TurnQueue<Task>::Item> next;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_work));
      next = tasks_.Pop();
      if (!next.has_value()) return;
      ++running_;
    }
    const SteadyTime begun = SteadyNow();
    {
      std::optional<GivesWay> gives_way;
      if (options.niceness > 0) gives_way.emplace();
      next->item();
      next->item = nullptr;  // what it holds is let go before it counts as done
    }
    const double seconds = std::max(absl::ToDoubleSeconds(SteadyNow() - begun), kShortest);
    absl::MutexLock lock(&mu_);
    tasks_.Charge(next->turn, seconds);
    --running_;
  }
}

}  // namespace gdn
