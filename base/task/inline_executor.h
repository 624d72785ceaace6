// Runs flows on the thread that makes them ready: a step's reply is written by the thread that computed it.
//
// A flow that is posted while the same thread runs one already waits until that one waits or has ended, so that the
// stack stays flat. Flows must not block.
// Thread safety: from any thread. Ownership: borrows `timers`, which tells the time and keeps the timers. If a deadline
// ends a wait, the flow continues on the thread of `timers`.
//
//   InlineExecutor here(timers);
//   Begin(here, RunStep(parts, std::move(message)));  // runs until the step waits
#pragma once

#include "base/task/executor.h"

namespace gdn {

class InlineExecutor final : public Executor {
 public:
  explicit InlineExecutor(Executor& timers) : timers_(timers) {}

  SteadyTime Now() const override { return timers_.Now(); }
  void Post(Flow& flow) override;
  void SetTimer(Timer& timer) override { timers_.SetTimer(timer); }
  void ClearTimer(Timer& timer) override { timers_.ClearTimer(timer); }

 private:
  Executor& timers_;
};

}  // namespace gdn
