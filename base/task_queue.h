// Threads that run tasks: those of one owner in the order they were posted, those of several in turns, by the time that
// each owner's tasks have taken (base/turn_queue.h). Without owners: in the order they were posted.
//
// Thread safety: Post from any thread, also from a task. Ownership: joins its threads on destruction, after running
// what was posted.
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
#include "base/turn_queue.h"

namespace gdn {

struct TaskQueueOptions {
  std::string name = "gdn-tasks";  // of its threads; 15 letters
  int threads = 1;
  int niceness = 0;  // LowerThisThread; above 0 its tasks run in a GivesWay, too
};

class TaskQueue {
 public:
  using Task = std::function<void()>;

  explicit TaskQueue(const TaskQueueOptions& options);
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  void Post(Task task, const Turn& turn = {});
  // Waits until nothing is queued or running; what is posted meanwhile is waited for too.
  void Drain();
  // Tasks that have not begun.
  size_t waiting() const;

 private:
  void Loop(const TaskQueueOptions& options);

  mutable absl::Mutex mu_;
  TurnQueue<Task> tasks_ ABSL_GUARDED_BY(mu_);
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace gdn
