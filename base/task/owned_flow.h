// Base class of an object that runs one task after another on a flow of its own. For calls of gRPC, each of which has
// an object already.
//
// Thread safety: call Start only when no task runs. Ownership: the object and the task's parameters must live until
// Ended is called; the object may be destroyed within Ended.
//
//   class Call : public OwnedFlow<absl::Status> {
//     void Ended(absl::Status status) override { Finish(status); }
//   };
#pragma once

#include <optional>
#include <utility>

#include "base/task/executor.h"
#include "base/task/task.h"

namespace gdn {

template <typename T>
class OwnedFlow {
 public:
  explicit OwnedFlow(Executor& executor) : root_(executor, *this) {}
  OwnedFlow(const OwnedFlow&) = delete;
  OwnedFlow& operator=(const OwnedFlow&) = delete;

 protected:
  ~OwnedFlow() = default;

  // Begins `task` on the executor; no task of this object may be running. Ended may come before this returns.
  void Start(Task<T> task) {
    task_.emplace(std::move(task));
    root_.SuspendAt(task_->Attach(root_));
    root_.executor().Post(root_);
  }
  // Called once for each Start, with the task's result, after the task's frame was destroyed.
  virtual void Ended(T result) = 0;

 private:
  class Root final : public Flow {
   public:
    Root(Executor& executor, OwnedFlow& of) : Flow(executor), of_(of) {}

   private:
    void End() override {
      T result = of_.task_->TakeResult();
      of_.task_.reset();
      of_.Ended(std::move(result));
    }
    OwnedFlow& of_;
  };

  Root root_;
  std::optional<Task<T>> task_;
};

}  // namespace gdn
