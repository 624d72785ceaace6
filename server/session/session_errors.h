// Errors of sessions that only a server has: of its tiers, its fleet and the states that it stores. Those of a
// session's rules are in session_rules/refusals.h.
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
#include "session_rules/refusals.h"
#include "state_store/session_image.h"

namespace gdn {

class Session;
struct SessionSpec;

// Nobody can tell: the tier has not answered since the server started.
absl::Status SessionMaybeIn(const std::string& tier, const std::string& id);
// Its newest state is in the tier, which is not to be reached, or not used by this server.
absl::Status SessionAwayIn(const std::string& tier, const std::string& id);
// OK if the session is in this epoch, or the caller names none; else EpochMismatch, with the least token count of its
// layers. Under a SessionLease the answer stays true: nobody else can restore the session meanwhile.
absl::Status CheckEpoch(const Session& session, const std::optional<int64_t>& epoch);

// Whether a stored state is of this model, these dims and layers: FAILED_PRECONDITION (STATE_MISMATCH: field, found,
// expected) where it is not.
absl::Status CheckStateFits(const SessionHeader& header, const std::vector<int32_t>& layers, const SessionSpec& spec);

// Of servers that share sessions.
absl::Status NodeLeaseLapsed();
absl::Status SessionMoved(const std::string& id);
absl::Status SessionElsewhere(const std::string& id, const std::string& node);

}  // namespace gdn
