#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {

// Returns the result. If it is an error, `prefix` and ": " come before its message.
template <typename T>
absl::StatusOr<T> WithPrefix(absl::StatusOr<T> result, std::string_view prefix) {
  if (!result.ok()) return WithPrefix(result.status(), prefix);
  return result;
}

// Makes the error INVALID_ARGUMENT (`reason`: tensor) with the message "tensor 'NAME' MESSAGE".
inline absl::Status InvalidTensor(std::string_view reason, const std::string& name, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason, StrCat("tensor '", name, "' ", message),
                   {{"tensor", name}});
}

// Makes the error INVALID_ARGUMENT (INVALID_TENSOR_DATA) for a weight that is not finite. `what` says where it is and
// its value: "element [3, 17] is infinity".
inline absl::Status NotFinite(std::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData,
                   StrCat(what, "; weights must be finite: the file is damaged, fetch or convert it anew"));
}

}  // namespace gdn
