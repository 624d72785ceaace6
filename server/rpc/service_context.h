// The parts of the server that calls use.
//
// Thread safety: constant after the server starts; what it points to is safe from any thread. Ownership: GdnServer owns
// everything.
//
//   ServiceContext context{.models = catalog, .sessions = sessions, .store = store, .engines = engines, ...};
//   const auto server = RpcServer::Start(context, {"127.0.0.1:0"});
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/open_count.h"
#include "base/steady_clock.h"
#include "base/task/executor.h"
#include "server/admission/byte_ledger.h"
#include "server/batcher/engines.h"
#include "server/model/served_model.h"
#include "server/rpc/drain_state.h"
#include "server/rpc/principals.h"
#include "server/rpc/refusal_pause.h"
#include "server/rpc/rpc_stats.h"
#include "server/rpc/session_owners.h"
#include "server/security/audit.h"
#include "server/security/authenticator.h"
#include "server/session/checkpointer.h"
#include "server/session/prefix_index.h"
#include "server/session/prefix_keeper.h"
#include "server/session/residency.h"
#include "server/session/session_manager.h"
#include "server/shared_memory/shared_regions.h"
#include "server/trace/call_tracer.h"
#include "server/validation/step_input.h"

namespace gdn {

class Fleet;

struct ServiceContext {
  Executor& calls;  // runs the calls' flows, on the threads that make them ready
  Executor& flows;  // has the timers
  ByteLedger& ledger;
  const ModelCatalog& models;
  SessionManager& sessions;
  PrefixIndex& prefixes;
  PrefixKeeper& prefix_keeper;
  StateStore& store;
  DeviceRoom& room;
  TierStack& tiers;
  Residency& residency;
  Checkpointer& checkpointer;
  SessionEnvironment& environment;
  Fleet* fleet = nullptr;  // null: sessions are not shared with other servers
  Engines& engines;
  SharedRegions& shared_regions;
  const Principals& principals;
  const Authenticator* authenticator = nullptr;  // nullptr: everybody is served
  AuditLog* audit = nullptr;                     // null without logins
  SessionOwners& owners;
  DrainState& drain;
  // Starts a drain soon, like SIGTERM; nullptr: Drain is not possible.
  std::function<void()> begin_drain = nullptr;
  std::function<std::string()> metrics_text = nullptr;  // returns the text of /metrics
  OpenCount& transfers;  // open calls that shutdown waits for: tasks of unary methods except Drain, exports, imports
  RefusalPauses& refusals;
  CallTracer& tracer;
  RpcStats& stats;
  HostBlockPool& call_memory;  // for tensors of calls; page-locked if a device copies from it
  // For state files: threads that may block, memory to read into, and threads to spread the encoding over.
  TaskQueue& io;
  HostBlockPool& memory;
  SharedThreadPool& copiers;
  std::vector<StateDevice> devices;  // by StatePool::device
  const BackendInfo& backend;        // the first device's; all have the same numerics
  std::string version;
  StepLimits limits;
  int32_t max_queued_steps = 0;
  absl::Duration session_idle_ttl = absl::InfiniteDuration();  // for sessions created without idle_ttl
  int64_t recovered_sessions = 0;
  const SteadyClock& rate_clock = SteadyClock::Real();  // for quotas of tokens per second
};

}  // namespace gdn
