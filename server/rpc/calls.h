// The unary methods but for steps: a file of them each for models, sessions, their states, forks, drafts, traces and
// admins; and what requests that make sessions share.
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

// The epoch that a request names; nullopt where it names none.
template <typename Request>
std::optional<int64_t> EpochOf(const Request& request) {
  return request.has_session_epoch() ? std::optional(request.session_epoch()) : std::nullopt;
}

// The functions that answer the methods, in the files of their subjects.
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

// How far the drain is, of a server that drains.
void FillDrain(const ServiceContext& context, v1::DrainProgress* out);

// The model of a "models/NAME". NOT_FOUND (MODEL_NOT_FOUND), INVALID_ARGUMENT (INVALID_NAME).
absl::StatusOr<const ServedModel*> FindModel(const ServiceContext& context, const std::string& name);
// The session named "sessions/ID". INVALID_ARGUMENT (INVALID_NAME), NOT_FOUND (SESSION_NOT_FOUND).
absl::StatusOr<std::shared_ptr<Session>> FindSession(const ServiceContext& context, const Caller& caller,
                                                     std::string_view name);

// Of a request that may name another's session (`subject`), which is for admins: PERMISSION_DENIED.
absl::StatusOr<std::string> PrincipalFor(const ServiceContext& context, const Caller& caller, std::string_view subject);
void FillSession(const ServiceContext& context, const Session& session, v1::Session* out);
void FillLayers(const std::vector<LayerInfo>& layers, google::protobuf::RepeatedPtrField<v1::LayerState>* out);

// What a request's `spec` says; errors of FindModel and CheckOperatorSpec, INVALID_ARGUMENT (INVALID_SPEC) where none
// is set.
absl::StatusOr<SessionSpec> SpecOfModel(const ServiceContext& context, const std::string& name);
absl::StatusOr<SessionSpec> SpecOfOperator(const v1::OperatorSpec& spec);
absl::Status SpecMissing();
template <typename Request>
absl::StatusOr<SessionSpec> SpecOf(const ServiceContext& context, const Request& request) {
  if (request.spec_case() == Request::kModel) return SpecOfModel(context, request.model());
  if (request.spec_case() == Request::kOperator) return SpecOfOperator(request.operator_());
  return SpecMissing();
}

// What a request asks for is at most what the quotas of init.account allow: RESOURCE_EXHAUSTED (QUOTA_EXCEEDED: quota
// idle-ttl, max-lifetime). What it does not ask for is cut to that.
absl::Status KeepLifetimesToQuotas(const ServiceContext& context, bool asked_idle, bool asked_lifetime,
                                   SessionInit& init);

// The request's times to live, or the server's; of the caller in init.account. INVALID_ARGUMENT (INVALID_SPEC: field);
// errors of KeepLifetimesToQuotas.
template <typename Request>
absl::Status SetLifetimes(const ServiceContext& context, const Request& request, SessionInit& init) {
  GDN_ASSIGN_OR_RETURN(init.idle_ttl, CheckTimeToLive("idle_ttl", request.has_idle_ttl(), request.idle_ttl()));
  if (!request.has_idle_ttl()) init.idle_ttl = context.session_idle_ttl;
  GDN_ASSIGN_OR_RETURN(init.max_lifetime,
                       CheckTimeToLive("max_lifetime", request.has_max_lifetime(), request.max_lifetime()));
  return KeepLifetimesToQuotas(context, request.has_idle_ttl(), request.has_max_lifetime(), init);
}

}  // namespace gdn
