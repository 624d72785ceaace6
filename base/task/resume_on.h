// Moves a flow to another executor: to threads that may block on a disk, and back.
//
// Thread safety: belongs to one flow. Ownership: the executors must outlive the flow's stay.
//
//   GDN_CO_ASSIGN_OR_RETURN(Image image, co_await RunOn(io, ReadImage(tier, key)));  // and back
//   co_await ResumeOn(engine);  // the rest of this flow, its callers' included
#pragma once

#include <coroutine>
#include <type_traits>
#include <utility>

#include "base/task/executor.h"
#include "base/task/task.h"

namespace gdn {

// Moves the awaiting flow to the executor, behind the flows that are queued there; the flow stays there until it moves
// again. A flow that is on the executor already lets the queued flows run first.
class [[nodiscard]] ResumeOn {
 public:
  explicit ResumeOn(Executor& executor, bool lets_others_run = true)
      : executor_(executor), lets_others_run_(lets_others_run) {}
  bool await_ready() const { return false; }
  template <typename Promise>
  bool await_suspend(std::coroutine_handle<Promise> moving) {
    Executor& executor = executor_;
    Flow& flow = moving.promise().flow();
    if (!lets_others_run_ && &flow.executor() == &executor) return false;
    flow.SuspendAt(moving);
    flow.MoveTo(executor);
    executor.Post(flow);
    return true;
  }
  void await_resume() const {}

 private:
  Executor& executor_;
  const bool lets_others_run_;
};

// Moves the flow as ResumeOn does, but a flow that is on the executor already continues at once.
class [[nodiscard]] ReturnTo : public ResumeOn {
 public:
  explicit ReturnTo(Executor& executor) : ResumeOn(executor, /*lets_others_run=*/false) {}
};

// Returns the flow's executor: Executor& here = co_await ThisExecutor();
class [[nodiscard]] ThisExecutor {
 public:
  ThisExecutor() {}  // NOLINT(modernize-use-equals-default): GCC 12 destroys an aggregate awaiter twice
  bool await_ready() const { return false; }
  template <typename Promise>
  bool await_suspend(std::coroutine_handle<Promise> asking) {
    executor_ = &asking.promise().flow().executor();
    return false;
  }
  Executor& await_resume() const { return *executor_; }

 private:
  Executor* executor_ = nullptr;
};

// Runs the task on `there`, and returns to the executor that the flow was on.
template <typename T>
Task<T> RunOn(Executor& there, Task<T> task) {
  Executor& here = co_await ThisExecutor();
  co_await ResumeOn(there);
  if constexpr (std::is_void_v<T>) {
    co_await std::move(task);
    co_await ReturnTo(here);
  } else {
    T result = co_await std::move(task);
    co_await ReturnTo(here);
    co_return result;
  }
}

}  // namespace gdn
