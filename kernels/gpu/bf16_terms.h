// Device code: a float32 as the sum of three bfloat16 terms, for matrix units (kernels/projection/bf16_terms_gpu.h).
//
// Thread safety: pure functions.
//
//   StoreTerms4(terms + at, plane, x);
#pragma once

#include <cstdint>

#include "kernels/gpu/device.h"

namespace gdn::gpu {

inline constexpr int kMostTerms = 3;

struct Terms {
  uint32_t bits[kMostTerms];  // the largest first
};

__device__ __forceinline__ Terms TermsOfValue(float value) {
  const uint32_t bits = FloatToBits(value);
  if ((bits & 0x7f800000u) == 0x7f800000u) return {{0u, 0u, ToBf16(value)}};
  const float high = BitsToFloat(bits & 0xffff0000u);  // cut, because rounding could overflow
  const float rest = value - high;
  const uint16_t middle = ToBf16(rest);
  return {{bits >> 16, middle, ToBf16(rest - FromBf16(middle))}};
}

// Stores the terms of neighbouring values, each `plane` elements behind those of the term before. `to` and `plane` are
// multiples of four elements.
__device__ __forceinline__ void StoreTerms4(uint16_t* to, int64_t plane, const Vec4& x) {
  const Terms of[4] = {TermsOfValue(x.x), TermsOfValue(x.y), TermsOfValue(x.z), TermsOfValue(x.w)};
#pragma unroll
  for (int term = 0; term < kMostTerms; ++term) {
    const uint64_t low = of[0].bits[term] | of[1].bits[term] << 16;
    const uint64_t high = of[2].bits[term] | of[3].bits[term] << 16;
    *reinterpret_cast<uint64_t*>(to + term * plane) = low | high << 32;
  }
}

}  // namespace gdn::gpu
