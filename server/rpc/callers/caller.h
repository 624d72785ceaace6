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
  std::string principal = {};   // its name by Principals, never the token itself; "" if anonymous or refused
  Deadline deadline = {};       // the call's; cancelled when the client disconnects
  ByteAccountPtr account = {};  // charged for the memory that its calls use; CallerOf sets it always
  TraceContextPtr trace = {};   // from the client's "traceparent"; null without one
  // Why sessions and snapshots could not be brought from another server of the fleet (bring_sessions.h), by their ids;
  // null: all were brought.
  std::shared_ptr<const std::map<std::string, absl::Status>> not_here = nullptr;
  std::string subject = {};  // verified; "" without logins, or if refused
  std::string peer = {};     // the peer's address as gRPC gives it; "" without logins, or if refused
  bool admin = false;
  // When the login expires (InfiniteFuture: never), and the version of the token list that it was checked against.
  absl::Time expires = absl::InfiniteFuture();
  int64_t login_version = 0;
};

// OK if the caller is an admin, else PERMISSION_DENIED. If the server has no logins, nobody is an admin. `what`: the
// action that needs an admin, with which the message begins.
absl::Status CheckAdmin(const Caller& caller, std::string_view what);

// Reads the caller from the call's metadata and TLS identity. If callers have to log in, a refused login is in
// Caller::allowed and in the audit log. If the client sent one valid "traceparent", the trailing metadata gets the
// call's own. `gone`: cancelled by the reactor's OnCancel; Caller::deadline is then cancelled too.
Caller CallerOf(grpc::CallbackServerContext& call, const Access& access, const CancelSource& gone);

// Writes a line to the audit log if callers have to log in: caller, event, name and owner. `name`: "sessions/ID",
// "snapshots/KEY" or "leases/ID"; "": none. `owner`: the subject that has the session, if that is not the caller; "":
// the caller.
void Audit(const Access& access, const Caller& caller, std::string_view event, std::string_view name,
           std::string_view owner = "");

// OK if a stream may continue. If the login has expired or the token list has changed, logs in again with the call's
// metadata. A refused login is an error as in Caller::allowed; a token that belongs to another subject now is
// UNAUTHENTICATED. Without logins every stream may continue.
absl::Status StillAllowed(grpc::CallbackServerContext& call, const Access& access, const Caller& caller);

}  // namespace gdn
