// Errors of sessions that concern a server's tiers, its fleet and stored states. session_rules/refusals.h has the
// errors of the rules of a session.
//
// Thread safety: free functions. Ownership: none.
//
//   GDN_RETURN_IF_ERROR(CheckEpoch(*session, request.epoch));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "session_rules/refusals.h"
#include "state_store/session_image.h"

namespace gdn {

class Session;
struct SessionSpec;

// Makes the error UNAVAILABLE (TIER_UNAVAILABLE: tier, session): the session may exist in a tier that has not answered
// since the server started.
absl::Status SessionMaybeIn(const std::string& tier, const std::string& id);
// Makes the error UNAVAILABLE (TIER_UNAVAILABLE: tier, session): the session's newest state is in a tier that cannot be
// reached or that this server does not use.
absl::Status SessionAwayIn(const std::string& tier, const std::string& id);
// OK if the session is in this epoch, or `epoch` is nullopt. Else ABORTED (EPOCH_MISMATCH) with the smallest token
// count of its layers. While the caller has a SessionLease the answer stays true, because nobody else can restore the
// session.
absl::Status CheckEpoch(const Session& session, const std::optional<int64_t>& epoch);

// OK if a stored state has the model, the value heads and the dims of `spec`, and no other layers. `layers`: those with
// a state; for a model, header.layers count too. Else FAILED_PRECONDITION (STATE_MISMATCH: field, found, expected).
absl::Status CheckStateFits(const SessionHeader& header, const std::vector<int32_t>& layers, const SessionSpec& spec);

// Make the errors of clients' leases (client_leases.h): NOT_FOUND (LEASE_NOT_FOUND), ALREADY_EXISTS (LEASE_EXISTS) for
// another grace, RESOURCE_EXHAUSTED (TOO_MANY_LEASES). `id`: the lease's, without "leases/".
absl::Status LeaseNotFound(const std::string& id);
absl::Status LeaseExists(const std::string& id, absl::Duration found, absl::Duration expected);
absl::Status TooManyLeases(int64_t limit);

// Make the errors UNAVAILABLE of servers that share sessions. NODE_LEASE_LAPSED: this server's lease has ended.
// SESSION_MOVED: the session has moved to another server. SESSION_ELSEWHERE: the session is on the server `node`, which
// did not hand it over in time.
absl::Status NodeLeaseLapsed();
absl::Status SessionMoved(const std::string& id);
absl::Status SessionElsewhere(const std::string& id, const std::string& node);

}  // namespace gdn
