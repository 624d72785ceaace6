// Texts of errors that stay short whatever they quote: an error that is too long for its transport arrives as another.
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

inline constexpr size_t kMostListBytes = 256;  // of a list in an error

// `text`, which is UTF-8, or its beginning and its end with the number of bytes that were left out between them: at
// most `most_bytes` in all, and no character is cut. `most_bytes` is at least 48.
std::string BoundedText(std::string_view text, size_t most_bytes);

// Ascending numbers as "0-2,5"; a list of more than `most_bytes` bytes is cut after a number and ends with "..".
std::string NumberRanges(absl::Span<const int64_t> numbers, size_t most_bytes);
template <typename Numbers>
std::string NumberRanges(const Numbers& numbers, size_t most_bytes) {
  const std::vector<int64_t> wide(numbers.begin(), numbers.end());
  return NumberRanges(absl::Span<const int64_t>(wide), most_bytes);
}

}  // namespace gdn
