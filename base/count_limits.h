// Upper limits for a session's counters (tokens, epochs).
//
// Code that reads a counter from outside (a request, a state file, a tier) checks it against these limits, and code
// that advances a counter refuses to pass them. So counter arithmetic cannot overflow, and clients that store numbers
// as doubles have them exactly.
//
//   if (tokens > kMaxTokenCount - token_count) return TokenCountLimit(...);
#pragma once

#include <cstdint>

namespace gdn {

// Most tokens that a layer of a session may have seen, including its pending draft. A double has every integer up to
// 2^53.
inline constexpr int64_t kMaxTokenCount = int64_t{1} << 53;
// Highest epoch of a session. Epochs start at 1 and rise each time the session loses steps that were answered.
inline constexpr int64_t kMaxEpoch = int64_t{1} << 53;

}  // namespace gdn
