// Resource names and client-chosen ids.
//
// Thread safety: free functions.
//
//   GDN_ASSIGN_OR_RETURN(std::string id, ParseSessionName("sessions/a"));  // "a"
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/name_rules.h"

namespace gdn {

std::string SessionName(std::string_view id);  // "sessions/ID"
std::string ModelName(std::string_view id);    // "models/ID"
std::string LeaseName(std::string_view id);    // "leases/ID"

// Return the ID of "sessions/ID", "models/ID" or "leases/ID", as a view of the name. Valid IDs have 1 to 128 of the
// characters [A-Za-z0-9._~-]. INVALID_ARGUMENT (INVALID_NAME: field, value) for any other text.
absl::StatusOr<std::string_view> ParseSessionName(std::string_view name);
absl::StatusOr<std::string_view> ParseModelName(std::string_view name);
absl::StatusOr<std::string_view> ParseLeaseName(std::string_view name);

// Return OK for at most 128 (request ids: 64) of the characters [A-Za-z0-9._~-], and for "", because these ids are
// optional. Else INVALID_ARGUMENT (INVALID_NAME: field, value).
absl::Status CheckSessionId(std::string_view id);
absl::Status CheckLeaseId(std::string_view id);
absl::Status CheckRequestId(std::string_view id);
absl::Status CheckCheckpointId(std::string_view id);
// Returns OK for an id that CheckCheckpointId takes, but not for "": only the newest checkpoint has no id, and a
// request cannot name it. Else INVALID_ARGUMENT (INVALID_NAME: field, value).
absl::Status CheckNamedCheckpointId(std::string_view id);
// Returns OK for 1 to 128 of the characters [A-Za-z0-9._~-]. Else, for "" too, INVALID_ARGUMENT (INVALID_NAME: field,
// value).
absl::Status CheckSnapshotKey(std::string_view key);
// Returns OK for "" and for at most kMaxAffinityLength printable ASCII characters. Else INVALID_ARGUMENT (INVALID_NAME:
// field, value).
absl::Status CheckAffinity(std::string_view affinity);

}  // namespace gdn
