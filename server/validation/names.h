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

// Return the ID of "sessions/ID", "models/ID" or "leases/ID". INVALID_ARGUMENT (INVALID_NAME: field, value).
absl::StatusOr<std::string_view> ParseSessionName(std::string_view name);
absl::StatusOr<std::string_view> ParseModelName(std::string_view name);
absl::StatusOr<std::string_view> ParseLeaseName(std::string_view name);

// OK for a valid id, and for "", because these ids are optional. Else INVALID_ARGUMENT (INVALID_NAME: field, value).
absl::Status CheckSessionId(std::string_view id);
absl::Status CheckLeaseId(std::string_view id);
absl::Status CheckRequestId(std::string_view id);
absl::Status CheckCheckpointId(std::string_view id);
// OK for a valid id, but not for "": only the newest checkpoint has no id, and a request cannot name it. Else
// INVALID_ARGUMENT (INVALID_NAME: field, value).
absl::Status CheckNamedCheckpointId(std::string_view id);
// Refuses "" too.
absl::Status CheckSnapshotKey(std::string_view key);
// OK for "" and for at most kMaxAffinityLength printable ASCII characters. Errors as of CheckSessionId.
absl::Status CheckAffinity(std::string_view affinity);

}  // namespace gdn
