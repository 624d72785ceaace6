#include "base/task_queue.h"

#include <optional>
#include <utility>

#include "base/this_thread.h"

namespace gdn {

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

void TaskQueue::Post(Task task) {
  absl::MutexLock lock(&mu_);
  tasks_.push_back(std::move(task));
}

void TaskQueue::Drain() {
  absl::MutexLock lock(&mu_);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return tasks_.empty() && running_ == 0; };
  mu_.Await(absl::Condition(&idle));
}

void TaskQueue::Loop(const TaskQueueOptions& options) {
  NameThisThread(options.name);
  LowerThisThread(options.niceness);
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || !tasks_.empty(); };
  for (;;) {
    Task task;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_work));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      ++running_;
    }
    {
      std::optional<GivesWay> gives_way;
      if (options.niceness > 0) gives_way.emplace();
      task();
      task = nullptr;  // what it holds is let go before it counts as done
    }
    absl::MutexLock lock(&mu_);
    --running_;
  }
}

}  // namespace gdn
