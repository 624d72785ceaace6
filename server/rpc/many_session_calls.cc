// CreateSessions, DeleteSessions, ForkSessions, ResetSessions: the method for one session, run for each entry.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/task/status_macros.h"
#include "base/task/when_all.h"
#include "server/rpc/calls.h"
#include "server/rpc/session_calls.h"
#include "server/rpc/snapshot_calls.h"
#include "server/rpc/transport/rpc_status.h"
#include "server/validation/names.h"
#include "server/validation/session_spec.h"
#include "server/validation/step_input.h"

namespace gdn {
namespace {

// Memory of a session or an error in a reply, parsed and serialized, and of the flow that makes it; without layers.
constexpr int64_t kResultBytes = int64_t{4} << 10;
constexpr int64_t kLayerBytes = 160;  // of a LayerState, parsed and serialized

// The numbers of results that a call's memory is charged for.
struct Results {
  int64_t count = 0;   // sessions or errors
  int64_t layers = 0;  // of all sessions together
};

// Charges the results before anything is made, so that many small requests cannot take much memory for their replies.
absl::StatusOr<ByteCharge> ChargeResults(const SessionParts& parts, const Caller& caller, const Results& results) {
  return parts.access.ledger.TryCharge(BytePool::kCalls, caller.account,
                                       results.count * kResultBytes + results.layers * kLayerBytes);
}

// Layers of the caller's session or snapshot with this id; 0 if it is not here.
int64_t LayersOfId(const SessionParts& parts, const Caller& caller, std::string id) {
  const auto session =
      parts.lookup.sessions.Peek({.principal = caller.principal, .id = std::move(id), .checkpoint = ""});
  return session == nullptr ? 0 : static_cast<int64_t>(session->spec().layers.size());
}

// Most layers of the session that the request asks for; 0 if it is refused.
int64_t LayersOf(const SessionParts& parts, const Caller& caller, const v1::CreateSessionRequest& request) {
  if (!request.snapshot().empty()) return LayersOfId(parts, caller, SnapshotId(request.snapshot()));
  if (request.spec_case() == v1::CreateSessionRequest::kOperator) {
    const auto spec = CheckOperatorSpec(request.operator_());
    return spec.ok() ? spec->layer_count : 0;
  }
  const auto model = FindModel(parts.models, request.model());
  return model.ok() ? static_cast<int64_t>((*model)->layers.size()) : 0;
}

// Layers of the caller's session with this name; 0 if it is not here.
int64_t LayersOf(const SessionParts& parts, const Caller& caller, std::string_view name) {
  const auto id = ParseSessionName(name);
  return id.ok() ? LayersOfId(parts, caller, std::string(*id)) : 0;
}

// Finds names that occur twice in a call.
class NamedOnce {
 public:
  // `field`: for the message. Empty names are not compared.
  absl::Status Add(std::string_view field, std::string_view name) {
    if (name.empty() || names_.insert({name.data(), name.size()}).second) return absl::OkStatus();
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kDuplicateSession,
                     StrCat(field, " names '", name, "' twice; name each session once in a call"),
                     {{"session", std::string(name)}});
  }

 private:
  absl::flat_hash_set<absl::string_view> names_;
};

// Runs the method for each request and returns the statuses. The entries begin in their order and wait at the same
// time. `responses` are parallel to the requests.
template <typename Request, typename Response>
Task<std::vector<absl::Status>> RunAll(const SessionParts& parts, const Caller& caller,
                                       const google::protobuf::RepeatedPtrField<Request>& requests,
                                       Task<absl::Status> (*method)(const SessionParts&, const Caller&, const Request&,
                                                                    Response*),
                                       std::vector<Response>& responses) {
  responses.resize(static_cast<size_t>(requests.size()));
  std::vector<Task<absl::Status>> entries;
  entries.reserve(responses.size());
  for (size_t i = 0; i < responses.size(); ++i) {
    entries.push_back(method(parts, caller, requests[static_cast<int>(i)], &responses[i]));
  }
  return WhenAll(std::move(entries));
}

Task<absl::Status> ResetOne(const SessionParts& parts, const Caller& caller, const v1::SessionReset& reset,
                            v1::Session* out) {
  GDN_CO_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(parts.lookup, caller, reset.name()));
  Task<absl::Status> done = parts.lookup.sessions.Reset(session, parts.numerics_id, caller.deadline, EpochOf(reset));
  GDN_CO_RETURN_IF_ERROR(co_await std::move(done));
  FillSession(parts.states, *session, out);
  spdlog::info("session reset id={} epoch={}{}", session->id(), session->epoch(), TraceForLog(caller.trace));
  co_return absl::OkStatus();
}

// Adds a result: the session, or why there is none.
void AddResult(const absl::Status& status, v1::Session& session,
               google::protobuf::RepeatedPtrField<v1::SessionResult>& results) {
  v1::SessionResult* const result = results.Add();
  if (status.ok()) {
    result->mutable_session()->Swap(&session);
  } else {
    *result->mutable_error() = ToRpcStatus(status);
  }
}

}  // namespace

Task<absl::Status> CreateSessions(const SessionParts& parts, const Caller& caller,
                                  const v1::CreateSessionsRequest& request, v1::CreateSessionsResponse* response) {
  GDN_CO_RETURN_IF_ERROR(CheckBatchSize("requests", request.requests_size(), parts.limits));
  NamedOnce ids;
  Results results{.count = request.requests_size()};
  for (const v1::CreateSessionRequest& create : request.requests()) {
    GDN_CO_RETURN_IF_ERROR(ids.Add("requests", create.session_id()));
    results.layers += LayersOf(parts, caller, create);
  }
  GDN_CO_ASSIGN_OR_RETURN(const ByteCharge charge, ChargeResults(parts, caller, results));
  std::vector<v1::CreateSessionResponse> created;
  Task<std::vector<absl::Status>> all = RunAll(parts, caller, request.requests(), CreateSession, created);
  const std::vector<absl::Status> statuses = co_await std::move(all);
  for (size_t i = 0; i < statuses.size(); ++i) {
    AddResult(statuses[i], *created[i].mutable_session(), *response->mutable_results());
  }
  SetLossMark(parts, caller, response);
  co_return absl::OkStatus();
}

Task<absl::Status> DeleteSessions(const SessionParts& parts, const Caller& caller,
                                  const v1::DeleteSessionsRequest& request, v1::DeleteSessionsResponse* response) {
  GDN_CO_RETURN_IF_ERROR(CheckBatchSize("names", request.names_size(), parts.limits));
  NamedOnce names;
  for (const std::string& name : request.names()) GDN_CO_RETURN_IF_ERROR(names.Add("names", name));
  GDN_CO_ASSIGN_OR_RETURN(const ByteCharge charge, ChargeResults(parts, caller, {.count = request.names_size()}));
  std::vector<Task<absl::Status>> deletions;
  for (const std::string& name : request.names()) {
    deletions.push_back(DeleteNamed(parts, caller, caller.principal, name));
  }
  Task<std::vector<absl::Status>> all = WhenAll(std::move(deletions));
  const std::vector<absl::Status> statuses = co_await std::move(all);
  for (const absl::Status& status : statuses) *response->add_statuses() = ToRpcStatus(status);
  co_return absl::OkStatus();
}

Task<absl::Status> ForkSessions(const SessionParts& parts, const Caller& caller, const v1::ForkSessionsRequest& request,
                                v1::ForkSessionsResponse* response) {
  GDN_CO_RETURN_IF_ERROR(CheckBatchSize("requests", request.requests_size(), parts.limits));
  NamedOnce ids;
  Results results;
  int64_t children = 0;
  for (const v1::ForkSessionRequest& fork : request.requests()) {
    for (const std::string& id : fork.session_ids()) GDN_CO_RETURN_IF_ERROR(ids.Add("session_ids", id));
    children += fork.session_ids_size();
    results.count += std::max(1, fork.session_ids_size());
    results.layers +=
        fork.session_ids_size() * (fork.snapshot().empty() ? LayersOf(parts, caller, fork.name())
                                                           : LayersOfId(parts, caller, SnapshotId(fork.snapshot())));
  }
  if (children > 0) GDN_CO_RETURN_IF_ERROR(CheckBatchSize("session_ids of all requests", children, parts.limits));
  GDN_CO_ASSIGN_OR_RETURN(const ByteCharge charge, ChargeResults(parts, caller, results));
  std::vector<v1::ForkSessionResponse> forked;
  Task<std::vector<absl::Status>> all = RunAll(parts, caller, request.requests(), ForkSession, forked);
  const std::vector<absl::Status> statuses = co_await std::move(all);
  for (size_t i = 0; i < statuses.size(); ++i) {
    v1::ForkResult* const result = response->add_results();
    if (statuses[i].ok()) {
      result->mutable_sessions()->Swap(forked[i].mutable_sessions());
    } else {
      *result->mutable_error() = ToRpcStatus(statuses[i]);
    }
  }
  SetLossMark(parts, caller, response);
  co_return absl::OkStatus();
}

Task<absl::Status> ResetSessions(const SessionParts& parts, const Caller& caller,
                                 const v1::ResetSessionsRequest& request, v1::ResetSessionsResponse* response) {
  GDN_CO_RETURN_IF_ERROR(CheckBatchSize("resets", request.resets_size(), parts.limits));
  NamedOnce names;
  Results results{.count = request.resets_size()};
  for (const v1::SessionReset& reset : request.resets()) {
    GDN_CO_RETURN_IF_ERROR(names.Add("resets", reset.name()));
    results.layers += LayersOf(parts, caller, reset.name());
  }
  GDN_CO_ASSIGN_OR_RETURN(const ByteCharge charge, ChargeResults(parts, caller, results));
  std::vector<v1::Session> sessions;
  Task<std::vector<absl::Status>> all = RunAll(parts, caller, request.resets(), ResetOne, sessions);
  const std::vector<absl::Status> statuses = co_await std::move(all);
  for (size_t i = 0; i < statuses.size(); ++i) {
    AddResult(statuses[i], sessions[i], *response->mutable_results());
  }
  co_return absl::OkStatus();
}

}  // namespace gdn
