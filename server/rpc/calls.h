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
#include "server/rpc/service_context.h"
#include "server/validation/session_spec.h"

namespace gdn {

// The epoch that a request names; nullopt where it names none.
template <typename Request>
std::optional<int64_t> EpochOf(const Request& request) {
  return request.has_session_epoch() ? std::optional(request.session_epoch()) : std::nullopt;
}

// info_calls.cc
absl::Status GetServerInfo(const ServiceContext& context, const Caller& caller, const v1::GetServerInfoRequest& request,
                           v1::GetServerInfoResponse* response);
absl::Status ListModels(const ServiceContext& context, const Caller& caller, const v1::ListModelsRequest& request,
                        v1::ListModelsResponse* response);
absl::Status GetModel(const ServiceContext& context, const Caller& caller, const v1::GetModelRequest& request,
                      v1::GetModelResponse* response);

// session_calls.cc
Task<absl::Status> CreateSession(const ServiceContext& context, const Caller& caller,
                                 const v1::CreateSessionRequest& request, v1::CreateSessionResponse* response);
absl::Status GetSession(const ServiceContext& context, const Caller& caller, const v1::GetSessionRequest& request,
                        v1::GetSessionResponse* response);
absl::Status ListSessions(const ServiceContext& context, const Caller& caller, const v1::ListSessionsRequest& request,
                          v1::ListSessionsResponse* response);
Task<absl::Status> DeleteSession(const ServiceContext& context, const Caller& caller,
                                 const v1::DeleteSessionRequest& request, v1::DeleteSessionResponse* response);

// state_calls.cc
Task<absl::Status> CheckpointSession(const ServiceContext& context, const Caller& caller,
                                     const v1::CheckpointSessionRequest& request,
                                     v1::CheckpointSessionResponse* response);
Task<absl::Status> ListCheckpoints(const ServiceContext& context, const Caller& caller,
                                   const v1::ListCheckpointsRequest& request, v1::ListCheckpointsResponse* response);
Task<absl::Status> DeleteCheckpoint(const ServiceContext& context, const Caller& caller,
                                    const v1::DeleteCheckpointRequest& request, v1::DeleteCheckpointResponse* response);
Task<absl::Status> RestoreCheckpoint(const ServiceContext& context, const Caller& caller,
                                     const v1::RestoreCheckpointRequest& request,
                                     v1::RestoreCheckpointResponse* response);
absl::Status PrefetchSessions(const ServiceContext& context, const Caller& caller,
                              const v1::PrefetchSessionsRequest& request, v1::PrefetchSessionsResponse* response);

// fork_call.cc
Task<absl::Status> ForkSession(const ServiceContext& context, const Caller& caller,
                               const v1::ForkSessionRequest& request, v1::ForkSessionResponse* response);

// prefix_calls.cc
Task<absl::Status> KeepPrefix(const ServiceContext& context, const Caller& caller, const v1::KeepPrefixRequest& request,
                              v1::KeepPrefixResponse* response);
absl::Status DropPrefixes(const ServiceContext& context, const Caller& caller, const v1::DropPrefixesRequest& request,
                          v1::DropPrefixesResponse* response);

// accept_call.cc
Task<absl::Status> AcceptTokens(const ServiceContext& context, const Caller& caller,
                                const v1::AcceptTokensRequest& request, v1::AcceptTokensResponse* response);

// admin_calls.cc: what an admin may, beside what owners may.
Task<absl::Status> EvictSession(const ServiceContext& context, const Caller& caller,
                                const v1::EvictSessionRequest& request, v1::EvictSessionResponse* response);
absl::Status GetMetrics(const ServiceContext& context, const Caller& caller, const v1::GetMetricsRequest& request,
                        v1::GetMetricsResponse* response);
// Not counted among ServiceContext::transfers: the drain waits for those.
Task<absl::Status> Drain(const ServiceContext& context, const Caller& caller, const v1::DrainRequest& request,
                         v1::DrainResponse* response);
// How far the drain is, of a server that drains.
void FillDrain(const ServiceContext& context, v1::DrainProgress* out);

// trace_calls.cc
absl::Status TraceCalls(const ServiceContext& context, const Caller& caller, const v1::TraceCallsRequest& request,
                        v1::TraceCallsResponse* response);

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
