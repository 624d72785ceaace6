// Device code: rounds x to int8 as base/product_math.h says, four features a lane.
//
// Eight neighbouring lanes have a block's 32 features in order. The bits are those of RoundToInt8: the division is
// IEEE's, and the sum with kRoundingBias rounds to nearest even.
// Thread safety: all lanes of the wave call.
//
//   const RoundedQuad quad = RoundQuad<kWave>(x);               // x: features 4 lane .. 4 lane + 3
//   const BlockSums sums = BlockSumsOf<kWave>(quad.q);
//   if (lane % kBlockLanes == 0) StoreScale(quad.scale);
#pragma once

#include <cstdint>

#include "base/product_math.h"
#include "kernels/gpu/device.h"
#include "kernels/gpu/wave.h"

namespace gdn::gpu {

inline constexpr int kBlockWords = kInt8Block / 4;  // of four features each
inline constexpr int kBlockLanes = kBlockWords;     // that round a block together

// The sum of this number and a float32 below 2^22 in magnitude has the rounded float32 in its low bits.
inline constexpr float kRoundingBias = 0x1.8p23f;

struct RoundedQuad {
  uint32_t q;   // four signed bytes, the first feature lowest
  float scale;  // of the block
};

// Sums of a block's q over its first and its second 16 features.
struct BlockSums {
  int32_t first, second;
};

template <int kWave>
__device__ __forceinline__ RoundedQuad RoundQuad(const Vec4& x) {
  const auto magnitude = [](float value) { return FloatToBits(value) & 0x7fffffffu; };
  const auto largest_of = [](uint32_t a, uint32_t b) { return a > b ? a : b; };
  const uint32_t of_lane =
      largest_of(largest_of(magnitude(x.x), magnitude(x.y)), largest_of(magnitude(x.z), magnitude(x.w)));
  // Bits travel between lanes as floats.
  const uint32_t bits = FloatToBits(GroupReduce<kBlockLanes, kWave>(
      BitsToFloat(of_lane), [&](float a, float b) { return BitsToFloat(largest_of(FloatToBits(a), FloatToBits(b))); }));
  const float largest = BitsToFloat(bits);
  const bool zero = largest < kInt8Smallest;  // false for a NaN
  const bool finite = bits < 0x7f800000u;
  const float inverse = kInt8Largest / largest;
  const auto rounded = [inverse](float value) { return FloatToBits(value * inverse + kRoundingBias); };
  const uint32_t low = SelectBytes(rounded(x.x), rounded(x.y), 0x00000400u);
  const uint32_t high = SelectBytes(rounded(x.z), rounded(x.w), 0x00000400u);
  const uint32_t q = SelectBytes(low, high, 0x05040100u);
  return {finite && !zero ? q : 0u, !finite ? BitsToFloat(0x7fc00000u) : zero ? 0.0f : largest * (1.0f / kInt8Largest)};
}

// Every lane gets its half's sum as `first`, and the other half's as `second`: the lanes of a block's first 16 features
// have them in order.
template <int kWave>
__device__ __forceinline__ BlockSums BlockSumsOf(uint32_t q) {
  const float half = GroupReduce<kBlockLanes / 2, kWave>(
      BitsToFloat(static_cast<uint32_t>(Dot4(q, 0x01010101u, 0))),
      [](float a, float b) { return BitsToFloat(FloatToBits(a) + FloatToBits(b)); });
  return {static_cast<int32_t>(FloatToBits(half)),
          static_cast<int32_t>(FloatToBits(ButterflyPartner<kBlockLanes / 2, kWave>(half)))};
}

}  // namespace gdn::gpu
