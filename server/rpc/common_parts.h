// The parts that every call uses, whatever its method.
//
// Thread safety: constant; what it names is safe from any thread. Ownership: borrows; GdnServer owns the parts.
//
//   const Caller caller = CallerOf(*call, common.access, gone);
//   const RpcMeter meter(common.stats, RpcMethod::kDecode);
#pragma once

#include "base/open_count.h"
#include "base/task/executor.h"
#include "server/rpc/bring_sessions.h"
#include "server/rpc/callers/caller.h"
#include "server/rpc/callers/refusal_pause.h"
#include "server/rpc/drain_state.h"
#include "server/rpc/rpc_stats.h"
#include "server/trace/call_tracer.h"

namespace gdn {

struct CommonParts {
  Executor& calls;  // runs the calls' flows, on the threads that make them ready
  Access access;
  SessionLookup lookup;
  RpcStats& stats;
  CallTracer& tracer;
  RefusalPauses& refusals;
  OpenCount& transfers;  // open calls that shutdown waits for: tasks of unary methods except Drain, exports, imports
  DrainState& drain;
};

}  // namespace gdn
