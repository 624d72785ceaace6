// How an operator's Validate reports a broken contract: always INVALID_ARGUMENT with a reason, the operator's name,
// what was found and what was expected.
//
// Thread safety: free functions.
//
//   GDN_RETURN_IF_ERROR(RequirePointer("Gating", "a", params.a));
//   GDN_RETURN_IF_ERROR(RequireRange("Gating", "rows", params.rows, 0, kMaxRows));
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/error.h"

namespace gdn {

// More rows than any call can bring; keeps rows * features within int64.
inline constexpr int64_t kMaxOperatorRows = int64_t{1} << 31;

inline absl::Status RequirePointer(absl::string_view op, absl::string_view name, const void* pointer) {
  if (pointer != nullptr) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInputMissing,
                   absl::StrCat(op, ": ", name, " is null; it must point to backend memory"),
                   {{"field", std::string(name)}});
}

struct NamedPointer {
  const char* name;
  const void* pointer;
};
inline absl::Status RequirePointers(absl::string_view op, std::initializer_list<NamedPointer> pointers) {
  for (const auto& [name, pointer] : pointers) {
    if (absl::Status status = RequirePointer(op, name, pointer); !status.ok()) return status;
  }
  return absl::OkStatus();
}

inline absl::Status RequireRange(absl::string_view op, absl::string_view name, int64_t value, int64_t low,
                                 int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                   absl::StrCat(op, ": ", name, " is ", value, "; expected ", low,
                                high == std::numeric_limits<int64_t>::max() ? " or more" : absl::StrCat(" .. ", high)),
                   {{"field", std::string(name)}});
}

inline absl::Status RequireAtLeast(absl::string_view op, absl::string_view name, int64_t value, int64_t low) {
  return RequireRange(op, name, value, low, std::numeric_limits<int64_t>::max());
}

struct NamedSize {
  const char* name;
  int64_t size;
};
// Each 0 .. kMaxOperatorRows.
inline absl::Status RequireSizes(absl::string_view op, std::initializer_list<NamedSize> sizes) {
  for (const auto& [name, size] : sizes) {
    if (absl::Status status = RequireRange(op, name, size, 0, kMaxOperatorRows); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace gdn
