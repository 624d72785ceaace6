// Threads that run tasks. Tasks of one owner run in the order of Post; owners take turns by the time their tasks have
// taken so far (base/threads/turn_queue.h). Without owners, tasks run in the order of Post.
//
// Thread safety: Post from any thread, also from a task. Ownership: the destructor runs the tasks that were posted,
// then joins the threads.
//
//   TaskQueue queue({.name = "gdn-io", .threads = 2});
//   queue.Post([] { ... });
//   queue.Post([] { ... }, {.of = account});
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/threads/turn_queue.h"

namespace gdn {

struct TaskQueueOptions {
  std::string name = "gdn-tasks";  // name of each thread; the first 15 characters count
  int threads = 1;
  // Thread priority, as for LowerThisThread; if above 0, tasks run inside a GivesWay (base/threads/this_thread.h)
  int niceness = 0;
};

class TaskQueue {
 public:
  using Task = std::function<void()>;

  explicit TaskQueue(const TaskQueueOptions& options);
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // Queues the task in its owner's turn, and returns at once. Tasks without a turn have one owner together.
  void Post(Task task, const Turn& turn = {});
  // Waits until no task is queued or running, including those posted meanwhile. Not for use in a task.
  void Drain();
  // Number of tasks that have not begun.
  size_t waiting() const;

 private:
  void Loop(const TaskQueueOptions& options);

  mutable absl::Mutex mu_;
  TurnQueue<Task> tasks_ ABSL_GUARDED_BY(mu_);
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;  // declared last: the threads use the members above
};

}  // namespace gdn
