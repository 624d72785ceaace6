// The lowest log decay that is added to a running sum.
//
// exp(-1000) is 0 in double, so a lower log decay forgets no more. Differences of running sums would lose the digits of
// every log decay that follows a lower one: after -1e16 a double holds nothing below 2. Code that takes differences of
// sums therefore clamps each term first; the reference does too. A sum whose differences nobody takes needs no clamp.
// Log decays are stored unclamped. -infinity and -FLT_MAX are legal and mean a decay of 0.
//
// Thread safety: pure functions. Device code includes log_decay_gpu-inl.h.
//
//   sum += double{ClampLogDecay(g[i])};
#pragma once

namespace gdn {

inline constexpr float kLowestLogDecay = -1000.0f;

// Returns `g`, or kLowestLogDecay if `g` is lower. Returns a NaN unchanged, because it compares as false.
inline float ClampLogDecay(float g) { return g < kLowestLogDecay ? kLowestLogDecay : g; }

}  // namespace gdn
