// How far the counts of a session go.
//
// Whoever takes a count from outside (a request, a state file, a tier) holds it against these, and whoever moves one on
// refuses what would pass them. So sums of counts and of what one call brings never overflow, and every client that
// keeps numbers as doubles has them exactly.
//
//   if (tokens > kMaxTokenCount - token_count) return TokenCountLimit(...);
#pragma once

#include <cstdint>

namespace gdn {

inline constexpr int64_t kMaxTokenCount = int64_t{1} << 53;  // of a layer, its draft included
inline constexpr int64_t kMaxEpoch = int64_t{1} << 53;

}  // namespace gdn
