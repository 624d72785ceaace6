// Flows of a unit test: they go on inside the call that lets them go on, and their time moves when the test says so.
//
// Thread safety: Spawn from any thread, but only one thread may start waits that have a time, and move it. Ownership:
// declare it after whatever its tasks use. Its destructor cancels `end` and waits for the tasks, so a task that waits
// under a deadline of `end` ends also if a failed test never lets it go on.
//
//   InlineFlows flows;
//   flows.group.Spawn(Lock(gate, flows.end.Until(flows.time.Now() + absl::Seconds(5))));  // runs until it waits
//   flows.time.RunFor(absl::Seconds(5));                                                  // it goes on
#pragma once

#include "base/task/deadline.h"
#include "base/task/inline_executor.h"
#include "base/task/task_group.h"
#include "tests/support/simulated_executor.h"

namespace gdn {

struct InlineFlows {
  ~InlineFlows() { end.Cancel(); }

  SimulatedExecutor time{/*seed=*/1};
  CancelSource end;
  InlineExecutor executor{time};
  TaskGroup group{executor};
};

}  // namespace gdn
