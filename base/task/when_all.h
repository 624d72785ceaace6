// Runs several tasks at the same time and waits for all of them. A failed task does not end the others.
//
// Thread safety: belongs to one flow; the tasks run beside each other, each on a flow of its own. Ownership: owns them.
//
//   std::vector<Task<absl::Status>> fetches;
//   for (Need& need : needs) fetches.push_back(Fetch(need, deadline));
//   const std::vector<absl::Status> fetched = co_await WhenAll(std::move(fetches));
#pragma once

#include <atomic>
#include <coroutine>
#include <cstddef>
#include <deque>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/task/executor.h"
#include "base/task/task.h"

namespace gdn {

// Awaiter of WhenAll: starts the tasks in their order, on the executor of the flow that waits.
template <typename T>
class Branches {
 public:
  explicit Branches(std::vector<Task<T>>& tasks) : tasks_(tasks), left_(tasks.size()) {}
  bool await_ready() const { return tasks_.empty(); }
  template <typename Promise>
  void await_suspend(std::coroutine_handle<Promise> waiting) {
    flow_ = &waiting.promise().flow();
    flow_->SuspendAt(waiting);
    FlowQueue begun;
    for (Task<T>& task : tasks_) begun.Push(&branches_.emplace_back(*this, task));
    begun.PostAll();  // the last to end resumes the flow, so nothing of this is touched after the last Post
  }
  void await_resume() const {}

 private:
  class Branch final : public Flow {
   public:
    Branch(Branches& of, Task<T>& task) : Flow(of.flow_->executor()), of_(of) { SuspendAt(task.Attach(*this)); }

   private:
    void End() override {
      Flow* waiting = of_.flow_;
      if (of_.left_.fetch_sub(1, std::memory_order_acq_rel) == 1) waiting->executor().Post(*waiting);
    }
    Branches& of_;
  };

  std::vector<Task<T>>& tasks_;
  std::deque<Branch> branches_;
  std::atomic<size_t> left_;
  Flow* flow_ = nullptr;
};

// Ends when every task has ended, and returns the results in the tasks' order. A failed task does not end the others;
// to end them early, give them a deadline that you can cancel.
template <typename T>
auto WhenAll(std::vector<Task<T>> tasks) -> Task<std::conditional_t<std::is_void_v<T>, void, std::vector<T>>> {
  co_await Branches<T>(tasks);
  if constexpr (!std::is_void_v<T>) {
    std::vector<T> results;
    results.reserve(tasks.size());
    for (Task<T>& task : tasks) results.push_back(task.TakeResult());
    co_return results;
  }
}

}  // namespace gdn
