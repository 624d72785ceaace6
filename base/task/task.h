// A coroutine's return type: work that waits, written as straight code.
//
// A task begins when it is awaited, on the flow of the task that awaits it, and is awaited once. Its frame is destroyed
// at the end of the expression that awaits it. A task that is never awaited never runs. An exception, and a lack of
// memory for the frame, end the process.
// tests/base/task/check_coroutines.py lists the forms that GCC 12 compiles wrongly, and finds them.
// Thread safety: a task belongs to one flow. Ownership: it owns its frame; by-value parameters live in the frame, and
// what reference parameters name must outlive the await.
//
//   Task<absl::StatusOr<Reply>> Answer(Parts& parts, const Caller& caller, Request request) {
//     GDN_CO_ASSIGN_OR_RETURN(Rows rows, co_await parts.sessions.Find(caller, request.names()));
//     co_return Finish(std::move(rows));
//   }
#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/task/executor.h"
#include "base/task/frame_pool.h"

// A coroutine's frame has its local variables as members. In a unity build a source looks like a header to GCC, which
// then warns of each frame with a variable of a type in an unnamed namespace.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

namespace gdn {

template <typename T>
class Task;

// Base of the promises of all tasks: has the flow that runs the task, and the coroutine that awaits it.
class TaskPromiseBase {
 public:
  static void* operator new(size_t bytes) { return AllocateFrame(bytes); }
  static void operator delete(void* frame, size_t bytes) noexcept { FreeFrame(frame, bytes); }

  Flow& flow() const { return *flow_; }

  struct FinalAwaiter {
    bool await_ready() noexcept { return false; }
    template <typename Promise>
    void await_suspend(std::coroutine_handle<Promise> ended) noexcept {
      const TaskPromiseBase& promise = ended.promise();
      promise.flow_->Continue(promise.awaiting_);
    }
    void await_resume() noexcept {}
  };
  std::suspend_always initial_suspend() noexcept { return {}; }
  FinalAwaiter final_suspend() noexcept { return {}; }
  void unhandled_exception() noexcept { std::terminate(); }

 private:
  template <typename T>
  friend class Task;
  Flow* flow_ = nullptr;
  std::coroutine_handle<> awaiting_;  // coroutine that awaits this task; null: the task is the flow's root
};

template <typename T>
class TaskPromise : public TaskPromiseBase {
 public:
  Task<T> get_return_object();
  template <typename U = T>
  requires std::is_constructible_v<T, U&&>
  void return_value(U&& value) { value_.emplace(std::forward<U>(value)); }
  T TakeResult() { return *std::move(value_); }

 private:
  std::optional<T> value_;
};

template <>
class TaskPromise<void> : public TaskPromiseBase {
 public:
  Task<void> get_return_object();
  void return_void() {}
  void TakeResult() {}
};

template <typename T>
class [[nodiscard]] Task {
 public:
  using promise_type = TaskPromise<T>;  // NOLINT(readability-identifier-naming): the language's name
  using Handle = std::coroutine_handle<promise_type>;

  Task(Task&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(frame_, other.frame_);
    return *this;
  }
  ~Task() {
    if (frame_) frame_.destroy();
  }

  class Awaiter {
   public:
    explicit Awaiter(Task task) : task_(std::move(task)) {}
    bool await_ready() const { return false; }
    template <typename Promise>
    void await_suspend(std::coroutine_handle<Promise> awaiting) {
      Flow& flow = awaiting.promise().flow();
      flow.Continue(task_.Attach(flow, awaiting));
    }
    T await_resume() { return task_.TakeResult(); }

   private:
    Task task_;
  };
  // Runs the task on the awaiting task's flow, and gives its result: co_await std::move(task).
  Awaiter operator co_await() && { return Awaiter(std::move(*this)); }

  // Makes the task run on `flow`, and returns its beginning, for Flow::SuspendAt and Flow::Continue. `awaiting`:
  // coroutine to resume when the task has ended; null: the task is the flow's root (TaskGroup, WhenAll).
  std::coroutine_handle<> Attach(Flow& flow, std::coroutine_handle<> awaiting = nullptr) {
    if (!frame_) EndProcess("a task was awaited a second time");
    frame_.promise().flow_ = &flow;
    frame_.promise().awaiting_ = awaiting;
    return frame_;
  }
  // Returns the task's result. Call once, after the task has ended.
  T TakeResult() { return frame_.promise().TakeResult(); }

 private:
  friend promise_type;
  explicit Task(Handle frame) : frame_(frame) {}
  Handle frame_;
};

template <typename T>
Task<T> TaskPromise<T>::get_return_object() {
  return Task<T>(Task<T>::Handle::from_promise(*this));
}

inline Task<void> TaskPromise<void>::get_return_object() { return Task<void>(Task<void>::Handle::from_promise(*this)); }

}  // namespace gdn
