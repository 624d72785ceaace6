// Bounds the length of texts that are quoted in errors: gRPC replaces an error that exceeds its transport's limit.
//
// Thread safety: free functions. Ownership: results own their bytes.
//
//   StrCat("no session named '", BoundedText(name, 64), "'");
//   NumberRanges(std::vector<int32_t>{0, 1, 2, 5}, 100);  // "0-2,5"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace gdn {

inline constexpr size_t kMostListBytes = 256;  // most bytes of a list of numbers in an error

// Returns `text` (UTF-8) if it has at most `most_bytes` bytes. Else returns its beginning, " [N bytes] " for the bytes
// left out, and its end, together at most `most_bytes`. No character is cut. `most_bytes` is at least 48.
std::string BoundedText(std::string_view text, size_t most_bytes);

// Formats strictly ascending numbers as "0-2,5". A text longer than `most_bytes` (at least 2) is cut after a range and
// ends with "..", which is counted too.
std::string NumberRanges(absl::Span<const int64_t> numbers, size_t most_bytes);
template <typename Numbers>
std::string NumberRanges(const Numbers& numbers, size_t most_bytes) {
  const std::vector<int64_t> wide(numbers.begin(), numbers.end());
  return NumberRanges(absl::Span<const int64_t>(wide), most_bytes);
}

}  // namespace gdn
