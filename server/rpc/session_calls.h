// CreateSession, GetSession, ListSessions, DeleteSession, and what import shares with creation.
//
// Thread safety: free functions; `done` is called once, maybe from the engine's thread, maybe before the function
// returns. Requests and responses must live until then.
//
//   CreateSession(context, principal, request, response, [=](absl::Status status) { reactor->Finish(ToGrpcStatus(status)); });
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "gdn/v1/session.pb.h"
#include "server/rpc/service_context.h"
#include "server/session/session_state.h"

namespace gdn {

using CallDone = std::function<void(absl::Status)>;

void CreateSession(const ServiceContext& context, const std::string& principal, const v1::CreateSessionRequest& request,
                   v1::CreateSessionResponse* response, CallDone done);
absl::Status GetSession(const ServiceContext& context, const std::string& principal,
                        const v1::GetSessionRequest& request, v1::GetSessionResponse* response);
absl::Status ListSessions(const ServiceContext& context, const std::string& principal,
                          const v1::ListSessionsRequest& request, v1::ListSessionsResponse* response);
absl::Status DeleteSession(const ServiceContext& context, const std::string& principal,
                           const v1::DeleteSessionRequest& request);

void FillSession(const Session& session, v1::Session* out);

// The session named "sessions/ID". INVALID_ARGUMENT (INVALID_NAME), NOT_FOUND (SESSION_NOT_FOUND).
absl::StatusOr<std::shared_ptr<Session>> FindSession(const ServiceContext& context, const std::string& principal,
                                                     const std::string& name);

// What a request's `spec` says; errors of FindModel and CheckOperatorSpec, INVALID_ARGUMENT (INVALID_SPEC) where none
// is set.
absl::StatusOr<SessionSpec> SpecOfModel(const ServiceContext& context, const std::string& model);
absl::StatusOr<SessionSpec> SpecOfOperator(const v1::OperatorSpec& spec);
absl::Status SpecMissing();

// Makes the session on the engine's thread with `snapshot` in it (its layers may be none), publishes it and fills
// `out`.
void CreateFromSnapshot(const ServiceContext& context, SessionCreation creation, Snapshot snapshot, v1::Session* out,
                        CallDone done);

}  // namespace gdn
