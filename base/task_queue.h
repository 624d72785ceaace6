// Threads that run tasks in the order they were posted.
//
// Thread safety: Post from any thread, also from a task. Ownership: joins its threads on destruction, after running what
// was posted.
//
//   TaskQueue queue({.threads = 2});
//   queue.Post([] { ... });
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace gdn {

struct TaskQueueOptions {
  int threads = 1;
  int niceness = 0;  // 0 to 19: the larger, the more they give way to other threads that have work
};

class TaskQueue {
 public:
  using Task = std::function<void()>;

  explicit TaskQueue(const TaskQueueOptions& options);
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  void Post(Task task);
  // Waits until nothing is queued or running; what is posted meanwhile is waited for too.
  void Drain();

 private:
  void Loop(int niceness);

  absl::Mutex mu_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace gdn
