// Checks for operators' Validate functions. Errors are INVALID_ARGUMENT with a reason; the message names the operator,
// the value and what was expected.
//
// Thread safety: free functions.
//
//   GDN_RETURN_IF_ERROR(RequirePointers("Gating", {{"a", params.a}, {"b", params.b}}));
//   GDN_RETURN_IF_ERROR(RequireRange("Gating", "rows", params.rows, 0, kMaxRows));
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {

// Most rows that an operator accepts, inclusive: above the rows of any call, yet rows * features fits an int64.
inline constexpr int64_t kMaxOperatorRows = int64_t{1} << 31;

// Makes the error INVALID_ARGUMENT (VALUE_OUT_OF_RANGE) about the value of `field`, which is the error's detail
// "field". The message is "op: " and the concatenated pieces.
template <typename... Pieces>
absl::Status InvalidField(absl::string_view op, absl::string_view field, const Pieces&... pieces) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange, gdn::StrCat(op, ": ", pieces...),
                   {{"field", std::string(field)}});
}

inline absl::Status RequirePointer(absl::string_view op, absl::string_view name, const void* pointer) {
  if (pointer != nullptr) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInputMissing,
                   absl::StrCat(op, ": ", name, " is null; it must point to backend memory"),
                   {{"field", std::string(name)}});
}

struct NamedPointer {
  absl::string_view name;
  const void* pointer;
};

// Returns INVALID_ARGUMENT (INPUT_MISSING) that names the first null pointer; OK if there is none.
inline absl::Status RequirePointers(absl::string_view op, std::initializer_list<NamedPointer> pointers) {
  for (const auto& [name, pointer] : pointers) GDN_RETURN_IF_ERROR(RequirePointer(op, name, pointer));
  return absl::OkStatus();
}

// INVALID_ARGUMENT (VALUE_OUT_OF_RANGE) that names `name`, unless low <= value <= high. `hint` is appended as it is to
// the expected range in the message.
inline absl::Status RequireRange(absl::string_view op, absl::string_view name, int64_t value, int64_t low, int64_t high,
                                 absl::string_view hint = "") {
  if (value >= low && value <= high) return absl::OkStatus();
  const bool open = high == std::numeric_limits<int64_t>::max();
  return InvalidField(op, name, name, " is ", value, "; expected ", low, open ? " or more" : absl::StrCat(" .. ", high),
                      hint);
}

inline absl::Status RequireAtLeast(absl::string_view op, absl::string_view name, int64_t value, int64_t low,
                                   absl::string_view hint = "") {
  return RequireRange(op, name, value, low, std::numeric_limits<int64_t>::max(), hint);
}

// RequireRange for element `index` of `array`, named "array[index]". The name is built only for an error, because that
// is slower than the check.
inline absl::Status RequireEntryRange(absl::string_view op, absl::string_view array, int64_t index, int64_t value,
                                      int64_t low, int64_t high, absl::string_view hint = "") {
  if (value >= low && value <= high) return absl::OkStatus();
  return RequireRange(op, absl::StrCat(array, "[", index, "]"), value, low, high, hint);
}

inline absl::Status RequireEntryAtLeast(absl::string_view op, absl::string_view array, int64_t index, int64_t value,
                                        int64_t low, absl::string_view hint = "") {
  return RequireEntryRange(op, array, index, value, low, std::numeric_limits<int64_t>::max(), hint);
}

struct NamedSize {
  absl::string_view name;
  int64_t size;
};

// INVALID_ARGUMENT that names the first size outside 0 .. kMaxOperatorRows (inclusive).
inline absl::Status RequireSizes(absl::string_view op, std::initializer_list<NamedSize> sizes) {
  for (const auto& [name, size] : sizes) GDN_RETURN_IF_ERROR(RequireRange(op, name, size, 0, kMaxOperatorRows));
  return absl::OkStatus();
}

inline absl::Status RequireFinite(absl::string_view op, absl::string_view name, float value) {
  if (std::isfinite(value)) return absl::OkStatus();
  return InvalidField(op, name, name, " is ", value, "; expected a finite number");
}

// INVALID_ARGUMENT (VALUE_OUT_OF_RANGE) that names `name`, unless the value is finite and above 0.
inline absl::Status RequirePositive(absl::string_view op, absl::string_view name, float value) {
  if (std::isfinite(value) && value > 0.0f) return absl::OkStatus();
  return InvalidField(op, name, name, " is ", value, "; expected a positive finite number");
}

}  // namespace gdn
