// Lets flows run on the threads of a TaskQueue, in the turn of an account: for work that blocks on a disk or a network.
//
// Time and timers come from the executor that is passed to the constructor.
// Thread safety: from any thread. Ownership: borrows the queue and the executor. May live in the frame of the task that
// uses it with RunOn.
//
//   TaskQueueExecutor io(parts.io_threads, account->turn(), executor);
//   GDN_CO_ASSIGN_OR_RETURN(Image image, co_await RunOn(io, ReadImage(tier, key)));
#pragma once

#include "base/task/executor.h"
#include "base/threads/steady_clock.h"
#include "base/threads/task_queue.h"
#include "base/threads/turn_queue.h"

namespace gdn {

class TaskQueueExecutor final : public Executor {
 public:
  TaskQueueExecutor(TaskQueue& queue, const Turn& turn, Executor& timers)
      : queue_(queue), turn_(turn), timers_(timers) {}

  SteadyTime Now() const override { return timers_.Now(); }
  // Allocates memory, unlike ThreadExecutor's, because the queue's tasks are std::functions.
  void Post(Flow& flow) override {
    queue_.Post([&flow] { flow.Run(); }, turn_);
  }
  void SetTimer(Timer& timer) override { timers_.SetTimer(timer); }
  void ClearTimer(Timer& timer) override { timers_.ClearTimer(timer); }

 private:
  TaskQueue& queue_;
  const Turn turn_;
  Executor& timers_;
};

}  // namespace gdn
