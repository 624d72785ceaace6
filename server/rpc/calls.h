// The functions that answer the unary methods other than Prefill and Decode, one file for each subject (models,
// sessions, states, forks, drafts, prefixes, traces, admins), and helpers that they share.
//
// Thread safety: free functions; a task belongs to its call's flow. Ownership: context, caller, request and response
// must outlive the task.
//
//   Task<absl::Status> answer = CreateSession(context, caller, request, &response);
//   const absl::Status status = co_await std::move(answer);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "base/task/task.h"
#include "gdn/v1/admin.pb.h"
#include "gdn/v1/info.pb.h"
#include "gdn/v1/prefix.pb.h"
#include "gdn/v1/session.pb.h"
#include "gdn/v1/state.pb.h"
#include "gdn/v1/trace.pb.h"
#include "server/rpc/caller.h"
#include "server/rpc/rpc_methods.h"
#include "server/rpc/service_context.h"
#include "server/validation/session_spec.h"

namespace gdn {

// The epoch in a request, or nullopt.
template <typename Request>
std::optional<int64_t> EpochOf(const Request& request) {
  return request.has_session_epoch() ? std::optional(request.session_epoch()) : std::nullopt;
}

// Declares one function for each method.
#define GDN_DECLARE_IMMEDIATE(Name)                                                                        \
  absl::Status Name(const ServiceContext& context, const Caller& caller, const v1::Name##Request& request, \
                    v1::Name##Response* response);
#define GDN_DECLARE_TASK(Name)                                                                                   \
  Task<absl::Status> Name(const ServiceContext& context, const Caller& caller, const v1::Name##Request& request, \
                          v1::Name##Response* response);
GDN_IMMEDIATE_METHODS(GDN_DECLARE_IMMEDIATE)
GDN_TASK_METHODS(GDN_DECLARE_TASK)
#undef GDN_DECLARE_IMMEDIATE
#undef GDN_DECLARE_TASK

// Fills in the progress of the drain, if the server is draining.
void FillDrain(const ServiceContext& context, v1::DrainProgress* out);

// Finds the model named "models/NAME". NOT_FOUND (MODEL_NOT_FOUND), INVALID_ARGUMENT (INVALID_NAME).
absl::StatusOr<const ServedModel*> FindModel(const ServiceContext& context, const std::string& name);
// Finds the caller's session named "sessions/ID". INVALID_ARGUMENT (INVALID_NAME), NOT_FOUND (SESSION_NOT_FOUND).
absl::StatusOr<std::shared_ptr<Session>> FindSession(const ServiceContext& context, const Caller& caller,
                                                     std::string_view name);

// The principal of the session that a request names: the caller's, or that of `subject` if it is not empty.
// PERMISSION_DENIED if a caller that is not an admin names a subject.
absl::StatusOr<std::string> PrincipalFor(const ServiceContext& context, const Caller& caller, std::string_view subject);
void FillSession(const ServiceContext& context, const Session& session, v1::Session* out);
void FillLayers(const std::vector<LayerInfo>& layers, google::protobuf::RepeatedPtrField<v1::LayerState>* out);

// SpecOf reads the `spec` of a request: a model or an operator. Errors of FindModel and CheckOperatorSpec;
// INVALID_ARGUMENT (INVALID_SPEC) if neither is set.
absl::StatusOr<SessionSpec> SpecOfModel(const ServiceContext& context, const std::string& name);
absl::StatusOr<SessionSpec> SpecOfOperator(const v1::OperatorSpec& spec);
absl::Status SpecMissing();
template <typename Request>
absl::StatusOr<SessionSpec> SpecOf(const ServiceContext& context, const Request& request) {
  if (request.spec_case() == Request::kModel) return SpecOfModel(context, request.model());
  if (request.spec_case() == Request::kOperator) return SpecOfOperator(request.operator_());
  return SpecMissing();
}

// Limits the times to live to the quotas of init.account. RESOURCE_EXHAUSTED (QUOTA_EXCEEDED: quota idle-ttl,
// max-lifetime) if the request asked for more; a default that is longer is shortened.
absl::Status KeepLifetimesToQuotas(const ServiceContext& context, bool asked_idle, bool asked_lifetime,
                                   SessionInit& init);

// Sets init's times to live from the request, or to the server's default. init.account must be the caller's.
// INVALID_ARGUMENT (INVALID_SPEC: field); errors of KeepLifetimesToQuotas.
template <typename Request>
absl::Status SetLifetimes(const ServiceContext& context, const Request& request, SessionInit& init) {
  GDN_ASSIGN_OR_RETURN(init.idle_ttl, CheckTimeToLive("idle_ttl", request.has_idle_ttl(), request.idle_ttl()));
  if (!request.has_idle_ttl()) init.idle_ttl = context.session_idle_ttl;
  GDN_ASSIGN_OR_RETURN(init.max_lifetime,
                       CheckTimeToLive("max_lifetime", request.has_max_lifetime(), request.max_lifetime()));
  return KeepLifetimesToQuotas(context, request.has_idle_ttl(), request.has_max_lifetime(), init);
}

}  // namespace gdn
