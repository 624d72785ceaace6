// ForkSession: children that go on from where a session is.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "absl/container/flat_hash_set.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/rpc/bring_sessions.h"
#include "server/rpc/calls.h"
#include "server/session/session_errors.h"
#include "server/validation/names.h"

namespace gdn {
namespace {

constexpr int kMostChildren = 256;

// One call, from its begun children to their publication.
struct ForkWork {
  const ServiceContext& context;
  std::shared_ptr<Session> parent;
  SessionLease lease;
  std::vector<SessionInit> inits;
  std::vector<SessionCreation> creations;  // parallel to inits
  v1::ForkSessionResponse* response;
  std::optional<int64_t> epoch;  // the parent's, as the caller knows it
  TraceContextPtr trace;
  CallDone done;

  // The children that are not there yet.
  int32_t pending() const { return static_cast<int32_t>(std::ranges::count_if(creations, &SessionCreation::pending)); }

  void Finish(absl::Status status) {
    if (status.ok()) {
      for (const SessionCreation& creation : creations) {
        FillSession(context, *creation.session(), response->add_sessions());
      }
      spdlog::info("session forked id={} children={}{}", parent->id(), creations.size(), TraceForLog(trace));
    }
    creations.clear();
    lease.Release();
    done(std::move(status));
  }

  // The parent is locked and on the device, and `claims` are enough for everybody.
  void Fork(RoomClaims claims) {
    const auto take = [&slots = claims.slots](size_t count) {
      std::vector<SlotClaim> taken(std::make_move_iterator(slots.end() - static_cast<std::ptrdiff_t>(count)),
                                   std::make_move_iterator(slots.end()));
      slots.resize(slots.size() - count);
      return taken;
    };
    const size_t layers = parent->spec().layers.size();
    const auto pool = lease.pool();
    const int32_t parent_device = pool == nullptr ? 0 : pool->device();
    for (size_t i = 0; i < creations.size(); ++i) {
      if (!creations[i].pending()) continue;
      auto own = take(static_cast<size_t>(lease.claims_to_share()));
      std::shared_ptr<Session> child = lease.Fork(inits[i], take(layers), std::move(own));
      context.room.Track(child, parent_device, claims.charge.Split(context.room.BytesOf(*child)));
      creations[i].Replace(std::move(child));
    }
    for (SessionCreation& creation : creations) creation.Publish();
    lease.Release();
    for (const SessionCreation& creation : creations) {
      if (context.environment.on_progress) context.environment.on_progress(creation.session());
    }
    Finish(absl::OkStatus());
  }
};

absl::Status CheckIds(const v1::ForkSessionRequest& request) {
  if (request.session_ids_size() < 1 || request.session_ids_size() > kMostChildren) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     StrCat("session_ids has ", request.session_ids_size(), " entries, expected 1 .. ", kMostChildren),
                     {{"field", "session_ids"}});
  }
  absl::flat_hash_set<std::string> ids;
  for (const std::string& id : request.session_ids()) {
    GDN_RETURN_IF_ERROR(CheckSessionId(id));
    if (id.empty() || ids.insert(id).second) continue;
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kDuplicateSession,
                     StrCat("session_ids names '", id, "' twice; give each child an id of its own"),
                     {{"session", SessionName(id)}});
  }
  return absl::OkStatus();
}

// A retry has the hash of the first call. The epoch is left out: a client that has recovered meanwhile has another one.
Hash128 HashForkRequest(v1::ForkSessionRequest request) {
  request.clear_session_epoch();
  Hasher hasher;
  hasher.UpdateField("fork");
  hasher.UpdateField(request.SerializeAsString());
  return hasher.Finish();
}

// `ids`: the children's.
absl::Status BeginChildren(const v1::ForkSessionRequest& request, const std::vector<std::string>& ids, ForkWork& work) {
  GDN_RETURN_IF_ERROR(CheckIds(request));
  SessionInit common{.principal = work.parent->principal(),
                     .id = {},
                     .spec = work.parent->spec(),
                     .affinity = work.parent->affinity(),
                     .account = work.parent->account(),
                     .request = HashForkRequest(request)};
  GDN_RETURN_IF_ERROR(SetLifetimes(work.context, request, common));
  for (const std::string& id : ids) {
    SessionInit init = common;
    init.id = id;
    GDN_ASSIGN_OR_RETURN(SessionCreation creation, work.context.sessions.Begin(init));
    init.id = creation.session()->id();
    work.inits.push_back(std::move(init));
    work.creations.push_back(std::move(creation));
  }
  return absl::OkStatus();
}

void ForkNamed(const ServiceContext& context, const Caller& caller, const std::vector<std::string>& ids,
               const v1::ForkSessionRequest& request, v1::ForkSessionResponse* response, CallDone done) {
  auto parent = FindSession(context, caller, request.name());
  if (!parent.ok()) return done(parent.status());
  std::shared_ptr<ForkWork> work(new ForkWork{.context = context,
                                              .parent = *std::move(parent),
                                              .lease = {},
                                              .inits = {},
                                              .creations = {},
                                              .response = response,
                                              .epoch = EpochOf(request),
                                              .trace = caller.trace,
                                              .done = std::move(done)});
  if (absl::Status status = BeginChildren(request, ids, *work); !status.ok()) return work->Finish(std::move(status));
  if (work->pending() == 0) return work->Finish(absl::OkStatus());
  const WaitLimit limit = caller.limit;
  context.residency.LockResident(work->parent, limit, [work, limit](absl::StatusOr<SessionLease> lease) {
    if (!lease.ok()) return work->Finish(lease.status());
    work->lease = *std::move(lease);
    if (absl::Status other = CheckEpoch(*work->parent, work->epoch); !other.ok()) return work->Finish(std::move(other));
    const SessionSpec& spec = work->parent->spec();
    const auto layers = static_cast<int32_t>(spec.layers.size());
    work->context.residency.Reserve({.dims = spec.dims,
                                     .pool = work->lease.pool(),
                                     .count = work->pending() * layers + work->lease.claims_to_share(),
                                     .account = work->parent->account(),
                                     .bytes = work->pending() * work->context.room.BytesOf(spec)},
                                    work->parent->account(), limit, [work](absl::StatusOr<RoomClaims> claims) {
                                      if (!claims.ok()) return work->Finish(claims.status());
                                      work->Fork(*std::move(claims));
                                    });
  });
}

}  // namespace

void ForkSession(const ServiceContext& context, const Caller& caller, const v1::ForkSessionRequest& request,
                 v1::ForkSessionResponse* response, CallDone done) {
  std::vector<std::string> ids;
  for (const std::string& id : request.session_ids()) ids.push_back(IdToMake(context, id));
  if (context.fleet == nullptr || !CheckIds(request).ok()) {
    return ForkNamed(context, caller, ids, request, response, std::move(done));
  }
  std::vector<WantedSession> wanted = WantedIn(context, caller, request);
  for (const std::string& id : ids) wanted.push_back({.principal = caller.principal, .id = id, .make = true});
  const auto fork = [&context, &request, response, ids, done = std::move(done)](const Caller& brought) {
    const auto finish = [&context, principal = brought.principal, ids, done](absl::Status status) {
      for (const std::string& id : ids) {
        if (!status.ok()) GiveBackName(context, principal, id);
      }
      done(std::move(status));
    };
    if (brought.not_here != nullptr) return finish(brought.not_here->begin()->second);
    ForkNamed(context, brought, ids, request, response, finish);
  };
  BringSessions(context, caller, std::move(wanted), fork);
}

}  // namespace gdn
