// ForkSession: makes child sessions that continue from a session's state.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "absl/container/flat_hash_set.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/task/status_macros.h"
#include "server/rpc/bring_sessions.h"
#include "server/rpc/calls.h"
#include "server/rpc/fork_children.h"
#include "server/rpc/session_calls.h"
#include "server/rpc/snapshot_calls.h"
#include "server/validation/names.h"

namespace gdn {
namespace {

constexpr int kMostChildren = 256;

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
absl::StatusOr<Children> BeginChildren(const SessionParts& parts, const v1::ForkSessionRequest& request,
                                       const std::vector<std::string>& ids, const Session& parent,
                                       ClientLeasePtr lease) {
  GDN_RETURN_IF_ERROR(CheckIds(request));
  SessionInit common{.principal = parent.principal(),
                     .id = {},
                     .spec = parent.spec(),
                     .affinity = parent.affinity(),
                     .account = parent.account(),
                     .request = HashForkRequest(request),
                     .lease = std::move(lease)};
  GDN_RETURN_IF_ERROR(SetLifetimes(parts, request, common));
  Children children;
  for (const std::string& id : ids) {
    SessionInit init = common;
    init.id = id;
    GDN_ASSIGN_OR_RETURN(SessionCreation creation, parts.lookup.sessions.Begin(init));
    init.id = creation.session()->id();
    children.inits.push_back(std::move(init));
    children.creations.push_back(std::move(creation));
  }
  return children;
}

// The session or the snapshot that the request names.
absl::StatusOr<std::shared_ptr<Session>> FindParent(const SessionParts& parts, const Caller& caller,
                                                    const v1::ForkSessionRequest& request) {
  if (request.snapshot().empty()) return FindSession(parts.lookup, caller, request.name());
  if (!request.name().empty() || request.has_session_epoch()) {
    const std::string field = request.name().empty() ? "session_epoch" : "name";
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     StrCat("both snapshot and ", field,
                            " are set; name a session or a snapshot, and a snapshot has no "
                            "epoch"),
                     {{"field", field}});
  }
  return FindSnapshot(parts, caller, request.snapshot());
}

Task<absl::Status> ForkNamed(const SessionParts& parts, const Caller& caller, const std::vector<std::string>& ids,
                             const v1::ForkSessionRequest& request, v1::ForkSessionResponse* response) {
  GDN_CO_ASSIGN_OR_RETURN(const std::shared_ptr<Session> parent, FindParent(parts, caller, request));
  std::string lease_name = request.lease();
  if (!request.has_lease() && parent->lease() != nullptr) lease_name = LeaseName(parent->lease()->id());
  Task<absl::StatusOr<ClientLeasePtr>> named = LeaseNamed(parts, caller, std::move(lease_name));
  GDN_CO_ASSIGN_OR_RETURN(ClientLeasePtr of_client, co_await std::move(named));
  GDN_CO_ASSIGN_OR_RETURN(Children children, BeginChildren(parts, request, ids, *parent, std::move(of_client)));
  Task<absl::Status> made = MakeChildren(parts, caller, parent, {.epoch = EpochOf(request)}, children);
  GDN_CO_RETURN_IF_ERROR(co_await std::move(made));
  for (const SessionCreation& creation : children.creations) {
    FillSession(parts.states, *creation.session(), response->add_sessions());
  }
  spdlog::info("session forked id={} children={}{}", parent->id(), children.creations.size(),
               TraceForLog(caller.trace));
  co_return absl::OkStatus();
}

}  // namespace

Task<absl::Status> ForkSession(const SessionParts& parts, const Caller& caller, const v1::ForkSessionRequest& request,
                               v1::ForkSessionResponse* response) {
  std::vector<std::string> ids;
  for (const std::string& id : request.session_ids()) ids.push_back(IdToMake(parts.lookup, id));
  Caller brought = caller;
  const bool shared = parts.lookup.fleet != nullptr && CheckIds(request).ok();
  if (shared) {
    std::vector<WantedSession> wanted = WantedIn(parts.lookup, caller, request);
    if (!request.snapshot().empty()) wanted.push_back(WantedSnapshot(caller, request.snapshot()));
    for (const std::string& id : ids) wanted.push_back({.principal = caller.principal, .id = id, .make = true});
    co_await BringHere(parts.lookup, brought, std::move(wanted));
  }
  absl::Status forked;
  const auto refused = brought.not_here == nullptr ? ids.end() : std::ranges::find_if(ids, [&](const std::string& id) {
    return brought.not_here->contains(id);
  });
  if (refused != ids.end()) {
    forked = brought.not_here->at(*refused);
  } else {
    Task<absl::Status> fork = ForkNamed(parts, brought, ids, request, response);
    forked = co_await std::move(fork);
  }
  for (size_t i = 0; shared && !forked.ok() && i < ids.size(); ++i)
    GiveBackName(parts.lookup, brought.principal, ids[i]);
  if (forked.ok()) SetLossMark(parts, caller, response);
  co_return forked;
}

}  // namespace gdn
