// The caller of a call, and the call's deadline.
//
// If callers have to log in (server/security/authenticator.h), the principal is the verified subject, so a caller keeps
// its sessions when its token is replaced. Without logins the principal only tells callers apart and permits nothing:
// sessions made with one `authorization` metadata value (or one TLS client identity) are not visible to callers with
// another.
// Thread safety: free functions on the call's context; what Access names is safe from any thread.
//
//   const Caller caller = CallerOf(*call, access, gone);
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
#include "server/rpc/callers/principals.h"
#include "server/rpc/callers/session_owners.h"
#include "server/security/audit.h"
#include "server/security/authenticator.h"
#include "server/trace/trace_context.h"

namespace gdn {

// Metadata key in which a proxy of --trusted-proxies sends the subject of the client certificate that it has verified.
inline constexpr const char* kVerifiedSubjectKey = "x-gdn-verified-subject";

// The parts that tell who a caller is and which account its calls are charged to.
struct Access {
  const Principals& principals;
  const Authenticator* authenticator = nullptr;  // nullptr: everybody is served
  AuditLog* audit = nullptr;                     // nullptr without logins
  SessionOwners& owners;
  ByteLedger& ledger;
};

struct Caller {
  absl::Status allowed = {};    // OK, or why the call is refused: UNAUTHENTICATED, PERMISSION_DENIED
  std::string principal = {};   // its name by Principals, never the token itself; "" for an anonymous caller
  Deadline deadline = {};       // the call's; cancelled when the client disconnects
  ByteAccountPtr account = {};  // charged for the memory that its calls use
  TraceContextPtr trace = {};   // from the client's "traceparent"; null without one
  // Sessions, by id, that could not be brought from another server of the fleet, and why (bring_sessions.h); null:
  // none.
  std::shared_ptr<const std::map<std::string, absl::Status>> not_here = nullptr;
  std::string subject = {};  // verified; "" without logins
  std::string peer = {};     // the peer's address as gRPC gives it; "" without logins
  bool admin = false;
  // When the login expires, and the version of the token list that it was checked against.
  absl::Time expires = absl::InfiniteFuture();
  int64_t login_version = 0;
};

// Checks that the caller is an admin; else PERMISSION_DENIED. If the server has no logins, nobody is an admin. `what`:
// the action that needs an admin, for the message.
absl::Status CheckAdmin(const Caller& caller, std::string_view what);

// Reads the caller from the call's metadata. If the client sent a "traceparent", the trailing metadata gets the call's
// own. `gone`: cancelled by the reactor's OnCancel.
Caller CallerOf(grpc::CallbackServerContext& call, const Access& access, const CancelSource& gone);

// Writes a line to the audit log if callers have to log in: caller, event, session or lease ("": none), and the
// session's owner if it is not the caller.
void Audit(const Access& access, const Caller& caller, std::string_view event, std::string_view name,
           std::string_view owner = "");

// OK if a stream may continue: its token has not expired and is still listed for the same subject. Else an error as in
// Caller::allowed.
absl::Status StillAllowed(grpc::CallbackServerContext& call, const Access& access, const Caller& caller);

}  // namespace gdn
