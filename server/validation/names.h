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

// Return the ID of "sessions/ID" or "models/ID". INVALID_ARGUMENT (INVALID_NAME: field, value).
absl::StatusOr<std::string_view> ParseSessionName(std::string_view name);
absl::StatusOr<std::string_view> ParseModelName(std::string_view name);

// Each accepts "" too. INVALID_ARGUMENT (INVALID_NAME: field, value).
absl::Status CheckSessionId(std::string_view id);
absl::Status CheckRequestId(std::string_view id);
absl::Status CheckCheckpointId(std::string_view id);
// Refuses "" too: only the newest checkpoint has no id, and it is not named.
absl::Status CheckNamedCheckpointId(std::string_view id);
// Refuses "" too.
absl::Status CheckSnapshotKey(std::string_view key);
// Accepts "" too.
absl::Status CheckAffinity(std::string_view affinity);

}  // namespace gdn
