// Numbers of bytes as people write them.
//
// Thread safety: free functions. Ownership: none.
//
//   int64_t bytes = 0;
//   if (!ParseByteCount("8GiB", &bytes)) return Expected(kByteCountForm);
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "base/string_cat.h"

namespace gdn {

inline constexpr std::string_view kByteCountForm = "a number of bytes such as 1048576, 512KiB, 64MiB or 8GiB";

// False, with `bytes` as it was, where it is none.
inline bool ParseByteCount(std::string_view text, int64_t* bytes) {
  absl::string_view number = AbslView(text);
  int64_t unit = 1;
  for (const auto& [suffix, size] :
       {std::pair<absl::string_view, int64_t>{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}}) {
    if (absl::ConsumeSuffix(&number, suffix)) {
      unit = size;
      break;
    }
  }
  int64_t value = 0;
  if (!absl::SimpleAtoi(number, &value) || value < 0 || value > std::numeric_limits<int64_t>::max() / unit) {
    return false;
  }
  *bytes = value * unit;
  return true;
}

}  // namespace gdn
