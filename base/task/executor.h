// Runs flows, and tells them the time. A flow is a root task with the tasks that it awaits; it runs on one thread at a
// time. Executors are passed in, never found: ThreadExecutor in production, SimulatedExecutor in tests.
//
// The loop of Flow::Run resumes one coroutine after another. A task that begins or ends only tells the loop which
// coroutine is next, so the stack stays flat however many tasks follow each other, also without optimisation.
// Thread safety: all methods of an executor from any thread unless its header says otherwise. Ownership: an executor
// must outlive the task groups on it; flows and timers belong to the code that waits, and are linked, not copied.
//
//   ThreadExecutor executor({.name = "gdn-flows", .threads = 2});
//   TaskGroup group(executor);
//   group.Spawn(ServeOneCall(parts, std::move(message)));
#pragma once

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <utility>

#include "absl/functional/function_ref.h"
#include "base/threads/steady_clock.h"

namespace gdn {

class Executor;
class Waiter;

// Writes `defect` to standard error and aborts. For defects of the program, not for errors.
[[noreturn]] void EndProcess(const char* defect);

class Flow {
 public:
  explicit Flow(Executor& executor) : executor_(&executor) {}
  virtual ~Flow() = default;
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  // Runs the flow until it waits or has ended. Only executors call it, once for each Post.
  void Run();
  // The executor on which the flow continues after its next wait. Only the flow itself may read or change it.
  Executor& executor() const { return *executor_; }
  void MoveTo(Executor& executor) { executor_ = &executor; }

  // Sets the coroutine that the next Run resumes.
  void SuspendAt(std::coroutine_handle<> at) { suspended_ = at; }
  // Sets the coroutine that Run resumes once the current one has returned to Run; null ends the flow. Call only while
  // the flow runs.
  void Continue(std::coroutine_handle<> next);

 private:
  friend class FlowQueue;
  // State of one call of Run. It is on that call's stack, because another thread may run the flow before the call
  // returns.
  struct Pass {
    std::coroutine_handle<> next;
    bool ended = false;
  };

  // Called when the whole flow has ended. May destroy the flow.
  virtual void End() = 0;

  Executor* executor_;
  std::coroutine_handle<> suspended_;
  Pass* pass_ = nullptr;
  Flow* next_ = nullptr;  // the flow after this one in its FlowQueue; null: none
};

// Flows in the order in which they were pushed. Without locks; a flow is in one queue at most.
class FlowQueue {
 public:
  bool empty() const { return first_ == nullptr; }
  void Push(Flow* flow);  // adds the flow as the last; null is ignored
  Flow* Pop();            // removes and returns the first flow; null if there is none
  // Posts each flow to its own executor. Does not touch a flow after it was posted.
  void PostAll();

 private:
  Flow* first_ = nullptr;
  Flow* last_ = nullptr;
};

// Ends the wait of `waiter` at the time `due`. A member of that Waiter (base/task/waiter.h).
struct Timer {
  explicit Timer(Waiter& of) : waiter(&of) {}

  Waiter* waiter;
  SteadyTime due;
  uint64_t number = 0;  // set by Timers: the order of timers with the same time
};

class Executor : public SteadyClock {
 public:
  // Queues the flow; a thread of the executor then calls flow.Run() once. ThreadExecutor and InlineExecutor allocate
  // nothing here. Touches neither the flow nor the executor after the flow could run, so both may be gone when Post
  // returns.
  virtual void Post(Flow& flow) = 0;
  // Remembers the timer. At timer.due or soon after, the executor ends the wait of timer.waiter (WaitEnd::kLate) and
  // posts its flow. Set timer.due first. The timer must stay in place until ClearTimer has been called for it.
  virtual void SetTimer(Timer& timer) = 0;
  // Forgets the timer, also if it has ended its wait already. When this has returned, the executor does not touch the
  // timer any more, so it may be destroyed.
  virtual void ClearTimer(Timer& timer) = 0;
  // Blocks the calling thread until over() is true. The caller passes its own wait as `block`, which an executor with
  // threads just calls. An executor without threads runs its flows here instead. Call from no flow of this executor.
  virtual void BlockUntil(absl::FunctionRef<bool()> over, absl::FunctionRef<void()> block) { block(); }

 protected:
  // For destructors: ends the process if a TaskGroup still uses the executor.
  void CheckUnused() const;

 private:
  friend class TaskGroup;
  std::atomic<int> groups_{0};
};

}  // namespace gdn
