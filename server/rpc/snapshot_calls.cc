// SnapshotSession, SnapshotSessions, ListSnapshots, DeleteSnapshots.
#include "server/rpc/snapshot_calls.h"

#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/task/status_macros.h"
#include "base/task/when_all.h"
#include "server/rpc/calls.h"
#include "server/rpc/fork_children.h"
#include "server/rpc/transport/rpc_status.h"
#include "server/session/snapshots/snapshot_room.h"
#include "server/validation/names.h"
#include "server/validation/step_input.h"

namespace gdn {
namespace {

using google::protobuf::util::TimeUtil;

constexpr int32_t kDefaultSnapshots = 50;
constexpr int32_t kMostSnapshots = 1000;
constexpr size_t kMostSnapshotLayers = 4096;  // keeps a reply below 1 MiB
constexpr std::string_view kSnapshotToken = "after:";
// Memory of a snapshot or an error in a reply, parsed and serialized, and of the flow that makes it; without layers.
constexpr int64_t kSnapshotReplyBytes = int64_t{4} << 10;
constexpr int64_t kSnapshotLayerBytes = 160;  // of a LayerState, parsed and serialized

std::string_view LossCauseName(SnapshotLoss::Cause cause) {
  return cause == SnapshotLoss::Cause::kEvicted ? "evicted" : "damaged";
}

absl::Status SnapshotExists(std::string_view key, std::string_view session, std::string_view why) {
  return MakeError(absl::StatusCode::kAlreadyExists, reason::kSnapshotExists,
                   StrCat("the key '", key, "' is in use: ", why, "; use another key, or delete the snapshot first"),
                   {{"snapshot", std::string(key)}, {"session", std::string(session)}});
}

// Identifies the request together with the life of the session in which it was made, without the epoch that the client
// knows: a retry may know a later one.
Hash128 HashSnapshotRequest(const v1::SnapshotSessionRequest& request, const Session& session) {
  Hasher hasher;
  hasher.UpdateField("snapshot");
  hasher.UpdateField(request.session());
  hasher.UpdateField(request.key());
  hasher.UpdateInt(request.has_expected_token_count() ? request.expected_token_count() : -1);
  hasher.UpdateInt(session.version().created);
  hasher.UpdateInt(session.epoch());
  hasher.UpdateInt(session.resets());
  return hasher.Finish();
}

bool HaveSameCounts(const Session& a, const Session& b) {
  return std::ranges::equal(a.Layers(), b.Layers(), [](const LayerInfo& one, const LayerInfo& other) {
    return one.progress.token_count == other.progress.token_count &&
           one.progress.draft_length == other.progress.draft_length;
  });
}

// OK if the request made this snapshot, and asks for the same state.
absl::Status CheckSameSnapshot(const v1::SnapshotSessionRequest& request, const Session& session,
                               const Session& snapshot) {
  if (snapshot.request() != HashSnapshotRequest(request, session)) {
    return SnapshotExists(request.key(), request.session(), "another request made this snapshot");
  }
  if (!request.has_expected_token_count() && !HaveSameCounts(session, snapshot)) {
    return SnapshotExists(request.key(), request.session(),
                          "the session has moved on since this snapshot (a retry needs expected_token_count)");
  }
  return absl::OkStatus();
}

void FillSnapshot(StateService& states, const Session& snapshot, v1::Snapshot* out) {
  v1::Session session;
  FillSession(states, snapshot, &session);
  out->set_key(std::string(KeyOf(snapshot)));
  if (session.has_operator_()) {
    out->mutable_operator_()->Swap(session.mutable_operator_());
  } else {
    out->set_model(session.model());
  }
  out->mutable_layers()->Swap(session.mutable_layers());
  out->set_state_bytes(session.state_bytes());
  if (const auto layers = static_cast<int64_t>(snapshot.spec().layers.size()); layers > 0) {
    out->set_shared_bytes(session.state_bytes() / layers * snapshot.shared_layers());
  }
  out->set_tier(session.tier());
  out->mutable_create_time()->Swap(session.mutable_create_time());
  if (session.has_durable_time()) out->mutable_durable_time()->Swap(session.mutable_durable_time());
}

Task<absl::Status> TakeSnapshot(const SessionParts& parts, const Caller& caller,
                                const v1::SnapshotSessionRequest& request, v1::Snapshot* out) {
  GDN_CO_RETURN_IF_ERROR(CheckSnapshotKey(request.key()));
  GDN_CO_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(parts.lookup, caller, request.session()));
  const std::string id = SnapshotId(request.key());
  if (caller.not_here != nullptr) {
    const auto refused = caller.not_here->find(id);
    if (refused != caller.not_here->end()) co_return refused->second;
  }
  std::shared_ptr<Session> snapshot =
      parts.lookup.sessions.Peek({.principal = caller.principal, .id = id, .checkpoint = ""});
  if (snapshot != nullptr) {
    GDN_CO_RETURN_IF_ERROR(CheckSameSnapshot(request, *session, *snapshot));
  } else {
    const ExpectedParent expected{.epoch = EpochOf(request),
                                  .token_count = request.has_expected_token_count()
                                                     ? std::optional(request.expected_token_count())
                                                     : std::nullopt};
    // First without the session's lock, so that no other snapshot is evicted for a request that is wrong.
    GDN_CO_RETURN_IF_ERROR(session->CheckAlive());
    GDN_CO_RETURN_IF_ERROR(CheckParent(*session, expected));
    Task<absl::StatusOr<ByteCharge>> room =
        ChargeSnapshot(parts.lookup.sessions, parts.states.environment(), session->account(),
                       parts.states.room().BytesOf(*session), caller.deadline);
    GDN_CO_ASSIGN_OR_RETURN(ByteCharge charge, co_await std::move(room));
    SessionInit init{.principal = session->principal(),
                     .id = id,
                     .spec = session->spec(),
                     .affinity = session->affinity(),
                     .account = session->account(),
                     .request = HashSnapshotRequest(request, *session),
                     .lease = session->lease()};
    absl::StatusOr<SessionCreation> creation = parts.lookup.sessions.Begin(init, std::move(charge));
    if (absl::IsAlreadyExists(creation.status())) {
      co_return SnapshotExists(request.key(), request.session(), "another request made this snapshot");
    }
    GDN_CO_RETURN_IF_ERROR(creation.status());
    if (!creation->pending()) GDN_CO_RETURN_IF_ERROR(CheckSameSnapshot(request, *session, *creation->session()));
    Children children;
    children.inits.push_back(std::move(init));
    children.creations.push_back(*std::move(creation));
    Task<absl::Status> made = MakeChildren(parts, caller, session, expected, children);
    GDN_CO_RETURN_IF_ERROR(co_await std::move(made));
    snapshot = children.creations.front().session();
    spdlog::debug("snapshot taken key={} session={}{}", request.key(), session->id(), TraceForLog(caller.trace));
  }
  FillSnapshot(parts.states, *snapshot, out);
  co_return absl::OkStatus();
}

// Brings the session and the key here if there is a fleet, then takes the snapshot.
Task<absl::Status> TakeSnapshotHere(const SessionParts& parts, const Caller& caller,
                                    const v1::SnapshotSessionRequest& request, v1::Snapshot* out) {
  Caller brought = caller;
  if (parts.lookup.fleet != nullptr && CheckSnapshotKey(request.key()).ok()) {
    std::vector<WantedSession> wanted = WantedByName(parts.lookup, caller, request.session());
    wanted.push_back(WantedSnapshot(caller, request.key()));
    wanted.back().make = true;
    co_await BringHere(parts.lookup, brought, std::move(wanted));
  }
  Task<absl::Status> take = TakeSnapshot(parts, brought, request, out);
  absl::Status taken = co_await std::move(take);
  if (!taken.ok() && CheckSnapshotKey(request.key()).ok()) {
    GiveBackName(parts.lookup, caller.principal, SnapshotId(request.key()));
  }
  co_return taken;
}

// Refuses keys that occur twice in a call.
absl::Status AddKeyOnce(std::string_view field, const std::string& key, absl::flat_hash_set<std::string>& keys) {
  if (key.empty() || keys.insert(key).second) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kDuplicateSession,
                   StrCat(field, " names the key '", Shown(key), "' twice; name each key once in a call"),
                   {{"field", std::string(field)}});
}

// Deletes the snapshot for good.
Task<absl::Status> DeleteKey(const SessionParts& parts, const Caller& caller, std::string key) {
  const absl::StatusOr<std::shared_ptr<Session>> snapshot = FindSnapshot(parts, caller, key);
  GDN_CO_RETURN_IF_ERROR(snapshot.status());
  Task<absl::Status> end = parts.lookup.sessions.Delete(caller.principal, SnapshotId(key));
  absl::Status ended = co_await std::move(end);
  if (absl::IsNotFound(ended)) ended = SnapshotNotFound(parts, caller.principal, key);
  co_return ended;
}

// The id of the last snapshot on the previous page; "" for the first page.
absl::StatusOr<std::string> ReadSnapshotToken(std::string_view token) {
  if (token.empty()) return std::string();
  const bool has_prefix = token.starts_with(kSnapshotToken);
  const std::string_view key = has_prefix ? token.substr(kSnapshotToken.size()) : "";
  if (CheckSnapshotKey(key).ok()) return SnapshotId(key);
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidPageToken,
                   "page_token is not one that ListSnapshots returned; send next_page_token unchanged, or none");
}

void FillLostSnapshots(const SnapshotBook::Losses& losses, v1::ListSnapshotsResponse* response) {
  for (const SnapshotLoss& loss : losses.losses) {
    v1::LostSnapshot* const out = response->add_lost();
    out->set_key(loss.key);
    out->set_cause(loss.cause == SnapshotLoss::Cause::kEvicted ? v1::SNAPSHOT_LOSS_CAUSE_EVICTED
                                                               : v1::SNAPSHOT_LOSS_CAUSE_DAMAGED);
    *out->mutable_lost_time() = TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(loss.when));
    out->set_mark(loss.mark);
  }
  response->set_lost_incomplete(losses.incomplete);
}

}  // namespace

WantedSession WantedSnapshot(const Caller& caller, std::string_view key) {
  return {.principal = caller.principal, .id = SnapshotId(key)};
}

absl::Status SnapshotNotFound(const SessionParts& parts, const std::string& principal, std::string_view key) {
  const auto cause = parts.states.environment().snapshots().CauseOf(principal, key);
  const std::string name(key);
  if (!cause.has_value()) {
    return MakeError(absl::StatusCode::kNotFound, reason::kSnapshotNotFound,
                     StrCat("there is no snapshot with the key '", key, "'; send the session's inputs instead"),
                     {{"snapshot", name}});
  }
  return MakeError(absl::StatusCode::kNotFound, reason::kSnapshotNotFound,
                   StrCat("the snapshot with the key '", key, "' was ", LossCauseName(*cause),
                          "; send the session's inputs instead"),
                   {{"snapshot", name}, {"lost", std::string(LossCauseName(*cause))}});
}

absl::StatusOr<std::shared_ptr<Session>> FindSnapshot(const SessionParts& parts, const Caller& caller,
                                                      std::string_view key) {
  GDN_RETURN_IF_ERROR(CheckSnapshotKey(key));
  const std::string id = SnapshotId(key);
  absl::StatusOr<std::shared_ptr<Session>> found = parts.lookup.sessions.Find(caller.principal, id);
  if (!absl::IsNotFound(found.status())) return found;
  if (caller.not_here != nullptr) {
    const auto it = caller.not_here->find(id);
    if (it != caller.not_here->end() && !absl::IsNotFound(it->second)) return it->second;
  }
  return SnapshotNotFound(parts, caller.principal, key);
}

Task<absl::Status> LoseSnapshot(const SessionParts& parts, std::shared_ptr<Session> snapshot) {
  Task<absl::Status> end = parts.lookup.sessions.Delete(snapshot->principal(), snapshot->id());
  const absl::Status ended = co_await std::move(end);
  if (!ended.ok() && !absl::IsNotFound(ended)) co_return ended;
  if (ended.ok()) {
    spdlog::warn("snapshot key={} is lost: no tier has its state", KeyOf(*snapshot));
    parts.states.environment().snapshots().NoteLost(snapshot->principal(), KeyOf(*snapshot),
                                                    SnapshotLoss::Cause::kDamaged);
  }
  co_return SnapshotNotFound(parts, snapshot->principal(), KeyOf(*snapshot));
}

Task<absl::Status> SnapshotSession(const SessionParts& parts, const Caller& caller,
                                   const v1::SnapshotSessionRequest& request, v1::SnapshotSessionResponse* response) {
  Task<absl::Status> take = TakeSnapshotHere(parts, caller, request, response->mutable_snapshot());
  GDN_CO_RETURN_IF_ERROR(co_await std::move(take));
  SetLossMark(parts, caller, response);
  co_return absl::OkStatus();
}

Task<absl::Status> SnapshotSessions(const SessionParts& parts, const Caller& caller,
                                    const v1::SnapshotSessionsRequest& request,
                                    v1::SnapshotSessionsResponse* response) {
  GDN_CO_RETURN_IF_ERROR(CheckBatchSize("requests", request.requests_size(), parts.limits));
  absl::flat_hash_set<std::string> keys;
  int64_t layers = 0;
  for (const v1::SnapshotSessionRequest& one : request.requests()) {
    GDN_CO_RETURN_IF_ERROR(AddKeyOnce("requests", one.key(), keys));
    const auto session = FindSession(parts.lookup, caller, one.session());
    if (session.ok()) layers += static_cast<int64_t>((*session)->spec().layers.size());
  }
  GDN_CO_ASSIGN_OR_RETURN(
      const ByteCharge charge,
      parts.access.ledger.TryCharge(BytePool::kCalls, caller.account,
                                    request.requests_size() * kSnapshotReplyBytes + layers * kSnapshotLayerBytes));
  std::vector<v1::Snapshot> snapshots(static_cast<size_t>(request.requests_size()));
  std::vector<Task<absl::Status>> entries;
  entries.reserve(snapshots.size());
  for (size_t i = 0; i < snapshots.size(); ++i) {
    entries.push_back(TakeSnapshotHere(parts, caller, request.requests(static_cast<int>(i)), &snapshots[i]));
  }
  Task<std::vector<absl::Status>> all = WhenAll(std::move(entries));
  const std::vector<absl::Status> statuses = co_await std::move(all);
  for (size_t i = 0; i < statuses.size(); ++i) {
    v1::SnapshotResult* const result = response->add_results();
    if (statuses[i].ok()) {
      result->mutable_snapshot()->Swap(&snapshots[i]);
    } else {
      *result->mutable_error() = ToRpcStatus(statuses[i]);
    }
  }
  SetLossMark(parts, caller, response);
  co_return absl::OkStatus();
}

absl::Status ListSnapshots(const SessionParts& parts, const Caller& caller, const v1::ListSnapshotsRequest& request,
                           v1::ListSnapshotsResponse* response) {
  if (request.page_size() < 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     StrCat("page_size is ", request.page_size(), ", expected 0 (default) .. ", kMostSnapshots),
                     {{"field", "page_size"}});
  }
  GDN_ASSIGN_OR_RETURN(const std::string after, ReadSnapshotToken(request.page_token()));
  const int32_t wanted = request.page_size() == 0 ? kDefaultSnapshots : std::min(request.page_size(), kMostSnapshots);
  // Losses are read first. A snapshot that is lost meanwhile is then in neither list, but the next mark tells of it.
  const SnapshotBook::Losses losses =
      parts.states.environment().snapshots().LossesAfter(caller.principal, request.lost_after());
  // One more than the page needs, to know whether there is another page.
  const auto snapshots = parts.lookup.sessions.ListSnapshots(caller.principal, after, static_cast<size_t>(wanted) + 1);
  const size_t most = std::min(snapshots.size(), static_cast<size_t>(wanted));
  size_t shown = 0;
  for (size_t layers = 0; shown < most; ++shown) {
    layers += snapshots[shown]->spec().layers.size();
    if (shown > 0 && layers > kMostSnapshotLayers) break;
    FillSnapshot(parts.states, *snapshots[shown], response->add_snapshots());
  }
  if (snapshots.size() > shown) {
    response->set_next_page_token(StrCat(kSnapshotToken, KeyOf(*snapshots[shown - 1])));
  }
  if (request.page_token().empty()) FillLostSnapshots(losses, response);
  response->set_snapshot_loss_mark(losses.mark);
  return absl::OkStatus();
}

Task<absl::Status> DeleteSnapshots(const SessionParts& parts, const Caller& caller,
                                   const v1::DeleteSnapshotsRequest& request, v1::DeleteSnapshotsResponse* response) {
  GDN_CO_RETURN_IF_ERROR(CheckBatchSize("keys", request.keys_size(), parts.limits));
  absl::flat_hash_set<std::string> keys;
  for (const std::string& key : request.keys()) GDN_CO_RETURN_IF_ERROR(AddKeyOnce("keys", key, keys));
  GDN_CO_ASSIGN_OR_RETURN(
      const ByteCharge charge,
      parts.access.ledger.TryCharge(BytePool::kCalls, caller.account, request.keys_size() * kSnapshotReplyBytes));
  Caller brought = caller;
  std::vector<WantedSession> wanted;
  for (const std::string& key : request.keys()) wanted.push_back(WantedSnapshot(caller, key));
  co_await BringHere(parts.lookup, brought, std::move(wanted));
  std::vector<Task<absl::Status>> deletions;
  for (const std::string& key : request.keys()) deletions.push_back(DeleteKey(parts, brought, key));
  Task<std::vector<absl::Status>> all = WhenAll(std::move(deletions));
  const std::vector<absl::Status> statuses = co_await std::move(all);
  for (const absl::Status& status : statuses) *response->add_statuses() = ToRpcStatus(status);
  co_return absl::OkStatus();
}

}  // namespace gdn
