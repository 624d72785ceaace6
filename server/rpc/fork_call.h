// ForkSession: children that go on from where a session is.
//
// Thread safety: a free function; `done` is called once, from any thread, maybe before the function returns. Request
// and response must live until then.
//
//   ForkSession(context, principal, deadline, request, response, [=](absl::Status status) { ... });
#pragma once

#include <string>

#include "absl/time/time.h"
#include "gdn/v1/state.pb.h"
#include "server/rpc/service_context.h"
#include "server/rpc/session_calls.h"

namespace gdn {

void ForkSession(const ServiceContext& context, const std::string& principal, absl::Time deadline,
                 const v1::ForkSessionRequest& request, v1::ForkSessionResponse* response, CallDone done);

}  // namespace gdn
