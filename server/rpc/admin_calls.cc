// EvictSession, GetMetrics, Drain.
#include <google/protobuf/util/time_util.h>

#include <memory>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/rpc/calls.h"
#include "server/security/reasons.h"
#include "server/validation/names.h"

namespace gdn {
namespace {

using google::protobuf::util::TimeUtil;

// The number of the fastest tier that may have the session (TierStack::NumberFrom).
absl::StatusOr<size_t> FastestTier(const ServiceContext& context, v1::StateTier tier) {
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
  if (const auto number = context.tiers.NumberFrom(name); number.has_value()) return *number;
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDurableTier,
                   StrCat("this server has no tier from ", name,
                          " down; start it with --disk-dir or --redis, or name a faster tier"));
}

struct Eviction {
  const ServiceContext& context;
  const WaitLimit limit;
  const TraceContextPtr trace;
  const size_t fastest;
  const std::string subject;
  v1::Session* const out;
  SessionLease lease = {};

  absl::Status Run() {
    const Session& session = *lease.session();
    GDN_RETURN_IF_ERROR(session.CheckAlive());
    GDN_RETURN_IF_ERROR(limit.Check());
    GDN_RETURN_IF_ERROR(context.room.SendDown(lease, fastest));
    FillSession(context, session, out);
    if (!subject.empty()) out->set_owner(context.owners.OwnerOf(session.principal()));
    spdlog::info("session evicted id={} to={}{}", session.id(), v1::StateTier_Name(out->tier()), TraceForLog(trace));
    return absl::OkStatus();
  }
};

}  // namespace

void EvictSession(const ServiceContext& context, const Caller& caller, const v1::EvictSessionRequest& request,
                  v1::EvictSessionResponse* response, CallDone done) {
  const auto find = [&]() -> absl::StatusOr<std::pair<std::shared_ptr<Session>, size_t>> {
    GDN_ASSIGN_OR_RETURN(const std::string principal, PrincipalFor(context, caller, request.subject()));
    GDN_ASSIGN_OR_RETURN(const std::string_view id, ParseSessionName(request.name()));
    if (caller.not_here != nullptr) return caller.not_here->begin()->second;
    GDN_ASSIGN_OR_RETURN(std::shared_ptr<Session> session, context.sessions.Find(principal, id));
    GDN_ASSIGN_OR_RETURN(const size_t fastest, FastestTier(context, request.tier()));
    return std::pair(std::move(session), fastest);
  };
  const auto found = find();
  if (!found.ok()) return done(found.status());
  const auto& [session, fastest] = *found;
  const auto eviction = std::make_shared<Eviction>(Eviction{.context = context,
                                                            .limit = caller.limit,
                                                            .trace = caller.trace,
                                                            .fastest = fastest,
                                                            .subject = request.subject(),
                                                            .out = response->mutable_session()});
  // Where steps run, those end first.
  session->Lock([eviction, done = std::move(done)](SessionLease lease) {
    eviction->lease = std::move(lease);
    const auto turn = eviction->lease.session()->account()->turn();
    eviction->context.io.Post(
        [eviction, done] {
          absl::Status status = eviction->Run();
          eviction->lease.Release();
          done(std::move(status));
        },
        turn);
  });
}

absl::Status GetMetrics(const ServiceContext& context, const Caller& caller, const v1::GetMetricsRequest& /*request*/,
                        v1::GetMetricsResponse* response) {
  if (context.authenticator != nullptr) GDN_RETURN_IF_ERROR(CheckAdmin(caller, "what the server counts"));
  response->set_text(context.metrics_text());
  return absl::OkStatus();
}

void FillDrain(const ServiceContext& context, v1::DrainProgress* out) {
  const DrainState::Progress progress = context.drain.progress();
  *out->mutable_begin_time() = TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(progress.begin_time));
  out->set_waiting_steps(static_cast<int64_t>(context.engines.queued_steps()));
  out->set_open_transfers(context.transfers.open());
  out->set_sessions(progress.sessions.all);
  out->set_durable_sessions(progress.sessions.durable);
  out->set_failed_sessions(progress.sessions.failed);
  out->set_ended(progress.ended);
}

void Drain(const ServiceContext& context, const Caller& caller, const v1::DrainRequest& request,
           v1::DrainResponse* response, CallDone done) {
  if (absl::Status status = CheckAdmin(caller, "the end of the server"); !status.ok()) return done(std::move(status));
  if (!context.begin_drain) {
    return done(MakeError(absl::StatusCode::kPermissionDenied, reason::kPermissionDenied,
                          "whoever runs this server lets nobody else end it"));
  }
  if (context.drain.Begin()) {
    Audit(context, caller, "drain_begun", /*session=*/"");
    spdlog::info("an admin ends the server{}", TraceForLog(caller.trace));
    context.begin_drain();
  }
  const auto answer = [&context, response, done = std::move(done)] {
    FillDrain(context, response->mutable_progress());
    done(absl::OkStatus());
  };
  request.wait() ? context.drain.WhenEnded(answer) : answer();
}

}  // namespace gdn
