#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gdn {

// Returns the status of a Status or StatusOr, for code that handles both.
inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

}  // namespace gdn
