// The parts that calls on sessions use, and helpers that these calls share with each other and with imports.
//
// Thread safety: free functions; what SessionParts names is safe from any thread.
//
//   GDN_ASSIGN_OR_RETURN(const SessionSpec spec, SpecOf(parts.models, request));
//   GDN_RETURN_IF_ERROR(SetLifetimes(parts, request, init));
//   FillSession(parts.states, *session, response->mutable_session());
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/task/executor.h"
#include "base/task/task.h"
#include "gdn/v1/session.pb.h"
#include "server/model/served_model.h"
#include "server/rpc/bring_sessions.h"
#include "server/rpc/callers/caller.h"
#include "server/session/state_service.h"
#include "server/validation/session_spec.h"
#include "server/validation/step_input.h"

namespace gdn {

struct SessionParts {
  Access access;
  SessionLookup lookup;
  StateService& states;
  const ModelCatalog& models;
  const StepLimits& limits;
  std::string numerics_id;  // of the states (NumericsIdFor); equal ids promise equal bits
  absl::Duration default_idle_ttl = absl::InfiniteDuration();  // for sessions created without idle_ttl
  Executor& timers;                                            // has the timers for each TaskQueueExecutor
};

// Returns the session_epoch of a request; nullopt if it has none.
template <typename Request>
std::optional<int64_t> EpochOf(const Request& request) {
  return request.has_session_epoch() ? std::optional(request.session_epoch()) : std::nullopt;
}

// Deletes the session named "sessions/ID" of the principal. INVALID_ARGUMENT (INVALID_NAME); the error in
// caller.not_here; errors of SessionManager::Delete. `parts`, `caller` and `name` must outlive the task.
Task<absl::Status> DeleteNamed(const SessionParts& parts, const Caller& caller, std::string principal,
                               std::string_view name);

// Returns the caller's lease named "leases/ID"; nullptr for "". In a fleet, asks Redis if the lease is not known here.
// INVALID_ARGUMENT (INVALID_NAME), NOT_FOUND (LEASE_NOT_FOUND), UNAVAILABLE (TIER_UNAVAILABLE) if Redis does not
// answer.
Task<absl::StatusOr<ClientLeasePtr>> LeaseNamed(const SessionParts& parts, const Caller& caller, std::string name);

void FillSession(StateService& states, const Session& session, v1::Session* out);
void FillLayers(const std::vector<LayerInfo>& layers, google::protobuf::RepeatedPtrField<v1::LayerState>* out);

// Finds the model named "models/NAME"; it belongs to `models`. NOT_FOUND (MODEL_NOT_FOUND), INVALID_ARGUMENT
// (INVALID_NAME).
absl::StatusOr<const ServedModel*> FindModel(const ModelCatalog& models, const std::string& name);

// SpecOf reads the `spec` of a request: a model, with all of its layers, or an operator. Errors of FindModel and
// CheckOperatorSpec; INVALID_ARGUMENT (INVALID_SPEC) if neither is set.
absl::StatusOr<SessionSpec> SpecOfModel(const ModelCatalog& models, const std::string& name);
absl::StatusOr<SessionSpec> SpecOfOperator(const v1::OperatorSpec& spec);
absl::Status SpecMissing();
template <typename Request>
absl::StatusOr<SessionSpec> SpecOf(const ModelCatalog& models, const Request& request) {
  if (request.spec_case() == Request::kModel) return SpecOfModel(models, request.model());
  if (request.spec_case() == Request::kOperator) return SpecOfOperator(request.operator_());
  return SpecMissing();
}

// Limits init's times to live to the quotas of init.account. RESOURCE_EXHAUSTED (QUOTA_EXCEEDED: quota idle-ttl,
// max-lifetime) for a longer time that the request asked for (`asked_idle`, `asked_lifetime`). A longer default is
// shortened.
absl::Status KeepLifetimesToQuotas(ByteLedger& ledger, bool asked_idle, bool asked_lifetime, SessionInit& init);

// Sets init's times to live from the request. The defaults are parts.default_idle_ttl and an infinite lifetime.
// init.account must be the caller's. INVALID_ARGUMENT (INVALID_SPEC: field); errors of KeepLifetimesToQuotas.
template <typename Request>
absl::Status SetLifetimes(const SessionParts& parts, const Request& request, SessionInit& init) {
  GDN_ASSIGN_OR_RETURN(init.idle_ttl, CheckTimeToLive("idle_ttl", request.has_idle_ttl(), request.idle_ttl()));
  if (!request.has_idle_ttl()) init.idle_ttl = parts.default_idle_ttl;
  GDN_ASSIGN_OR_RETURN(init.max_lifetime,
                       CheckTimeToLive("max_lifetime", request.has_max_lifetime(), request.max_lifetime()));
  return KeepLifetimesToQuotas(parts.access.ledger, request.has_idle_ttl(), request.has_max_lifetime(), init);
}

}  // namespace gdn
