// Starts root tasks, each on a flow of its own, and outlives them all.
//
// A group is the last member of its owner, so that its destructor, which waits, comes first. The tasks of a group may
// use all objects that outlive it. To end a group soon, first cancel the deadlines that its tasks wait under
// (CancelSource). The destructor waits for ever for a task that waits without a deadline for an event that never comes;
// on a SimulatedExecutor that ends the process with a message.
// Thread safety: Spawn and open from any thread, also from tasks of the group; Wait from threads that run no flow of
// the executor. Ownership: the executor must outlive the group.
//
//   TaskGroup group(executor);
//   group.Spawn(Evict(parts, std::move(session)));
//   group.Spawn(Answer(parts, std::move(request)), [call](absl::StatusOr<Reply> reply) { call->Finish(reply); });
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/task/executor.h"
#include "base/task/task.h"

namespace gdn {

class TaskGroup {
 public:
  explicit TaskGroup(Executor& executor);
  ~TaskGroup();  // calls Wait
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  // Starts a task: posts it to the executor. An InlineExecutor may run the task before Spawn returns.
  void Spawn(Task<void> task);
  // Starts a task and ignores its result.
  template <typename T>
  void Spawn(Task<T> task) {
    Spawn(Then(std::move(task), [](const T&) {}));
  }
  // Starts a task, and calls done(result) on the task's flow when it has ended.
  template <typename T, typename Done>
  void Spawn(Task<T> task, Done done) {
    Spawn(Then(std::move(task), std::move(done)));
  }

  // Blocks until every task has ended and its frame is destroyed, also tasks that are spawned meanwhile. Not for use in
  // a flow of the executor.
  void Wait();
  // Returns the number of tasks that have not ended.
  int64_t open() const;

 private:
  class Root;
  void RootEnded();

  template <typename T, typename Done>
  static Task<void> Then(Task<T> task, Done done) {
    if constexpr (std::is_void_v<T>) {
      co_await std::move(task);
      done();
    } else {
      T result = co_await std::move(task);
      done(std::move(result));
    }
  }

  Executor& executor_;
  mutable std::mutex mu_;
  std::condition_variable ended_;
  int64_t open_ = 0;  // number of tasks that have not ended; guarded by mu_
};

// Runs a task and blocks until it has ended. For main and for tests, not from a flow.
template <typename T>
T BlockOn(Executor& executor, Task<T> task) {
  if constexpr (std::is_void_v<T>) {
    TaskGroup(executor).Spawn(std::move(task));
  } else {
    std::optional<T> kept;
    TaskGroup(executor).Spawn(std::move(task), [&kept](T result) { kept.emplace(std::move(result)); });
    return *std::move(kept);
  }
}

}  // namespace gdn
