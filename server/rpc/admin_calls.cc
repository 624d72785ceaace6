// EvictSession, GetMetrics, Drain.
#include <google/protobuf/util/time_util.h>

#include <memory>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/task/resume_on.h"
#include "base/task/status_macros.h"
#include "base/task/task_queue_executor.h"
#include "server/rpc/calls.h"
#include "server/rpc/info_calls.h"
#include "server/rpc/session_calls.h"
#include "server/security/reasons.h"
#include "server/validation/names.h"

namespace gdn {
namespace {

using google::protobuf::util::TimeUtil;

// The number of the fastest tier that may have the session (TierStack::NumberFrom).
absl::StatusOr<size_t> FastestTier(const TierStack& tiers, v1::StateTier tier) {
  std::string_view name;
  switch (tier) {
    case v1::STATE_TIER_UNSPECIFIED:
    case v1::STATE_TIER_HOST:
      name = "host";
      break;
    case v1::STATE_TIER_DISK:
      name = "disk";
      break;
    case v1::STATE_TIER_REDIS:
      name = "redis";
      break;
    default:
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                       StrCat("tier is ", v1::StateTier_Name(tier).empty() ? StrCat(tier) : v1::StateTier_Name(tier),
                              ", expected one below the device: STATE_TIER_HOST, STATE_TIER_DISK or STATE_TIER_REDIS"),
                       {{"field", "tier"}});
  }
  if (const auto number = tiers.NumberFrom(name); number.has_value()) return *number;
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDurableTier,
                   StrCat("this server has no tier from ", name,
                          " down; start it with --disk-dir or --redis, or name a faster tier"));
}

}  // namespace

Task<absl::Status> EvictSession(const SessionParts& parts, const Caller& caller, const v1::EvictSessionRequest& request,
                                v1::EvictSessionResponse* response) {
  GDN_CO_ASSIGN_OR_RETURN(const std::string principal, PrincipalFor(parts.access.owners, caller, request.subject()));
  GDN_CO_ASSIGN_OR_RETURN(const std::string_view id, ParseSessionName(request.name()));
  if (caller.not_here != nullptr) co_return caller.not_here->begin()->second;
  GDN_CO_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, parts.lookup.sessions.Find(principal, id));
  GDN_CO_ASSIGN_OR_RETURN(const size_t fastest, FastestTier(parts.states.tiers(), request.tier()));
  TaskQueueExecutor io(parts.states.transfer_threads(), session->account()->turn(), parts.timers);
  Executor& here = co_await ThisExecutor();
  // The lock waits for running steps.
  GDN_CO_ASSIGN_OR_RETURN(SessionLease lease, co_await session->Lock(caller.deadline));
  co_await ResumeOn(io);
  absl::Status evicted = session->CheckAlive();
  if (evicted.ok()) evicted = caller.deadline.Check(SteadyNow());
  if (evicted.ok()) evicted = parts.states.room().SendDown(lease, fastest);
  v1::Session& out = *response->mutable_session();
  if (evicted.ok()) FillSession(parts.states, *session, &out);
  lease.Release();
  co_await ReturnTo(here);
  GDN_CO_RETURN_IF_ERROR(evicted);
  if (!request.subject().empty()) out.set_owner(parts.access.owners.OwnerOf(session->principal()));
  spdlog::info("session evicted id={} to={}{}", session->id(), v1::StateTier_Name(out.tier()),
               TraceForLog(caller.trace));
  co_return absl::OkStatus();
}

absl::Status GetMetrics(const AdminParts& parts, const Caller& caller, const v1::GetMetricsRequest& /*request*/,
                        v1::GetMetricsResponse* response) {
  if (parts.common.access.authenticator != nullptr) GDN_RETURN_IF_ERROR(CheckAdmin(caller, "GetMetrics"));
  response->set_text(parts.metrics_text());
  return absl::OkStatus();
}

void FillDrain(const CommonParts& common, const Engines& engines, v1::DrainProgress* out) {
  const DrainState::Progress progress = common.drain.progress();
  *out->mutable_begin_time() = TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(progress.begin_time));
  out->set_waiting_steps(static_cast<int64_t>(engines.queued_steps()));
  out->set_open_transfers(common.transfers.open());
  out->set_sessions(progress.sessions.all);
  out->set_durable_sessions(progress.sessions.durable);
  out->set_failed_sessions(progress.sessions.failed);
  out->set_ended(progress.ended);
}

Task<absl::Status> Drain(const AdminParts& parts, const Caller& caller, const v1::DrainRequest& request,
                         v1::DrainResponse* response) {
  GDN_CO_RETURN_IF_ERROR(CheckAdmin(caller, "Drain"));
  if (!parts.begin_drain) {
    co_return MakeError(absl::StatusCode::kPermissionDenied, reason::kPermissionDenied,
                        "this server cannot be drained by a call; stop its process (SIGTERM)");
  }
  if (parts.common.drain.Begin()) {
    Audit(parts.common.access, caller, "drain_begun", /*session=*/"");
    spdlog::info("an admin ends the server{}", TraceForLog(caller.trace));
    parts.begin_drain();
  }
  if (request.wait()) GDN_CO_RETURN_IF_ERROR(co_await parts.common.drain.ended().Wait(caller.deadline));
  FillDrain(parts.common, parts.engines, response->mutable_progress());
  co_return absl::OkStatus();
}

}  // namespace gdn
