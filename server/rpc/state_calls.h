// CheckpointSession, RestoreCheckpoint, PrefetchSessions.
//
// Thread safety: free functions; `done` is called once, from any thread, maybe before the function returns. Requests
// and responses must live until then.
//
//   CheckpointSession(context, principal, request, response, [=](absl::Status status) { ... });
#pragma once

#include <string>

#include "absl/status/status.h"
#include "gdn/v1/state.pb.h"
#include "server/rpc/service_context.h"
#include "server/rpc/session_calls.h"

namespace gdn {

void CheckpointSession(const ServiceContext& context, const std::string& principal,
                       const v1::CheckpointSessionRequest& request, v1::CheckpointSessionResponse* response,
                       CallDone done);
void RestoreCheckpoint(const ServiceContext& context, const std::string& principal,
                       const v1::RestoreCheckpointRequest& request, v1::RestoreCheckpointResponse* response,
                       CallDone done);
absl::Status PrefetchSessions(const ServiceContext& context, const std::string& principal,
                              const v1::PrefetchSessionsRequest& request, v1::PrefetchSessionsResponse* response);

}  // namespace gdn
