// Flows of tests that use an engine. They run on the thread that makes them ready, as the flows of calls do.
//
// Thread safety: as TaskGroup. Ownership: waits for its flows when it is destroyed.
//
//   EngineFlows flows;
//   flows.group.Spawn(NoteEnd(job));  // on this thread until it waits, then on the engine's
//   EXPECT_OK(BlockOn(flows.executor, AcceptDrafts(batcher, std::move(rows), [] {})));
#pragma once

#include "base/task/inline_executor.h"
#include "base/task/task_group.h"
#include "tests/support/simulated_executor.h"

namespace gdn {

struct EngineFlows {
  SimulatedExecutor timers{/*seed=*/1};  // which these flows do not use
  InlineExecutor executor{timers};
  TaskGroup group{executor};
};

}  // namespace gdn
