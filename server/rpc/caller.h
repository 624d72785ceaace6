// Who is calling, and until when.
//
// Where callers have to log in (server/security/authenticator.h), the principal is the subject that was verified: a
// token that is replaced keeps its sessions. Elsewhere it is an identity and no permission: sessions made under one
// `authorization` metadata value (or one TLS client identity) are not to be seen under another.
// Thread safety: a free function on the call's context.
//
//   const Caller caller = CallerOf(*call, context, gone);
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <grpcpp/server_context.h>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/task/deadline.h"
#include "server/admission/byte_ledger.h"
#include "server/rpc/service_context.h"
#include "server/trace/trace_context.h"

namespace gdn {

// The metadata by which a proxy of --trusted-proxies says whose certificate it has verified.
inline constexpr const char* kVerifiedSubjectKey = "x-gdn-verified-subject";

struct Caller {
  absl::Status allowed = {};    // why nothing of the call may be done: UNAUTHENTICATED, PERMISSION_DENIED
  std::string principal = {};   // "" for an anonymous one; never the token itself: Principals' name for it
  Deadline deadline = {};       // the call's; cancelled once the client has gone
  ByteAccountPtr account = {};  // what its calls pin is charged to
  TraceContextPtr trace = {};   // of the client's "traceparent"; null without one
  // Sessions, by id, that another server of the fleet has and that have not come (bring_sessions.h); null: none.
  std::shared_ptr<const std::map<std::string, absl::Status>> not_here = nullptr;
  std::string subject = {};  // verified; "" where nobody has to log in
  std::string peer = {};     // as gRPC says it; "" then too
  bool admin = false;
  // Until when the login holds, and for which list.
  absl::Time expires = absl::InfiniteFuture();
  int64_t login_version = 0;
};

// PERMISSION_DENIED where the caller is no admin, as nobody is where nobody has to log in; `what` is for admins.
absl::Status CheckAdmin(const Caller& caller, std::string_view what);

// Answers a "traceparent" with the call's own, in the trailing metadata. `gone`: cancelled by the reactor's OnCancel.
Caller CallerOf(grpc::CallbackServerContext& call, const ServiceContext& service, const CancelSource& gone);

// Who did what with which session, and whose it is where it is not the caller's: a line in the audit log, where callers
// have to log in. "": it was about none.
void Audit(const ServiceContext& service, const Caller& caller, std::string_view event, std::string_view session,
           std::string_view owner = "");

// Whether a stream may go on: its token has not expired, and is still listed. The errors of Caller::allowed.
absl::Status StillAllowed(grpc::CallbackServerContext& call, const ServiceContext& service, const Caller& caller);

}  // namespace gdn
