// CreateSession, GetSession, ListSessions, DeleteSession, and what import shares with creation.
//
// Thread safety: free functions; `done` is called once, from any thread, maybe before the function returns. Requests
// and responses must live until then.
//
//   CreateSession(context, principal, deadline, request, response,
//                 [=](absl::Status status) { reactor->Finish(ToGrpcStatus(status)); });
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "gdn/v1/session.pb.h"
#include "server/rpc/service_context.h"

namespace gdn {

using CallDone = std::function<void(absl::Status)>;

void CreateSession(const ServiceContext& context, const std::string& principal, absl::Time deadline,
                   const v1::CreateSessionRequest& request, v1::CreateSessionResponse* response, CallDone done);
absl::Status GetSession(const ServiceContext& context, const std::string& principal,
                        const v1::GetSessionRequest& request, v1::GetSessionResponse* response);
absl::Status ListSessions(const ServiceContext& context, const std::string& principal,
                          const v1::ListSessionsRequest& request, v1::ListSessionsResponse* response);
void DeleteSession(const ServiceContext& context, const std::string& principal, const v1::DeleteSessionRequest& request,
                   CallDone done);

void FillSession(const ServiceContext& context, const Session& session, v1::Session* out);
void FillLayers(const std::vector<LayerInfo>& layers, google::protobuf::RepeatedPtrField<v1::LayerState>* out);
void FillTime(absl::Time time, google::protobuf::Timestamp* out);

// The session named "sessions/ID". INVALID_ARGUMENT (INVALID_NAME), NOT_FOUND (SESSION_NOT_FOUND).
absl::StatusOr<std::shared_ptr<Session>> FindSession(const ServiceContext& context, const std::string& principal,
                                                     const std::string& name);

// What a request's `spec` says; errors of FindModel and CheckOperatorSpec, INVALID_ARGUMENT (INVALID_SPEC) where none
// is set.
absl::StatusOr<SessionSpec> SpecOfModel(const ServiceContext& context, const std::string& name);
absl::StatusOr<SessionSpec> SpecOfOperator(const v1::OperatorSpec& spec);
absl::Status SpecMissing();

}  // namespace gdn
