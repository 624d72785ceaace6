// Device code: rounds x to int8 as base/product_math.h says, four or eight features a lane.
//
// Neighbouring lanes have a block's 32 features in order. The bits are those of RoundToInt8: division is IEEE's, and
// the sum with kRoundingBias rounds to nearest even.
// Thread safety: all lanes of the wave call.
//
//   const RoundedLane<1> part = RoundBlocks<kWave, 1>({x});         // x: features 4 lane .. 4 lane + 3
//   const BlockSums sums = BlockSumsOf<kWave, 1>(part.q);
//   if (lane % (kBlockWords / 1) == 0) StoreScale(part.scale);
#pragma once

#include <cstdint>

#include "base/product_math.h"
#include "kernels/gpu/device.h"
#include "kernels/gpu/wave.h"

namespace gdn::gpu {

inline constexpr int kBlockWords = kInt8Block / 4;  // of four features each

// The sum of this number and a float32 below 2^22 in magnitude has the rounded float32 in its low bits.
inline constexpr float kRoundingBias = 0x1.8p23f;

// A lane's part of a block: kWords words of four signed bytes, the first feature lowest.
template <int kWords>
struct RoundedLane {
  uint32_t q[kWords];
  float scale;  // of the block
};

// Sums of a block's q over its first and its second 16 features.
struct BlockSums {
  int32_t first, second;
};

// Rounds the lane's features, four in each of kWords vectors. kBlockWords / kWords lanes have a block.
template <int kWave, int kWords>
__device__ __forceinline__ RoundedLane<kWords> RoundBlocks(const Vec4 (&x)[kWords]) {
  const auto magnitude = [](float value) { return FloatToBits(value) & 0x7fffffffu; };
  const auto largest_of = [](uint32_t a, uint32_t b) { return a > b ? a : b; };
  uint32_t of_lane = 0;
#pragma unroll
  for (const Vec4& v : x) {
    of_lane = largest_of(
        of_lane, largest_of(largest_of(magnitude(v.x), magnitude(v.y)), largest_of(magnitude(v.z), magnitude(v.w))));
  }
  // Bits travel between lanes as floats.
  const uint32_t bits = FloatToBits(GroupReduce<kBlockWords / kWords, kWave>(
      BitsToFloat(of_lane), [&](float a, float b) { return BitsToFloat(largest_of(FloatToBits(a), FloatToBits(b))); }));
  const float largest = BitsToFloat(bits);
  const bool zero = largest < kInt8Smallest;  // false for a NaN
  const bool finite = bits < 0x7f800000u;
  const float inverse = kInt8Largest / largest;
  const auto rounded = [inverse](float value) { return FloatToBits(value * inverse + kRoundingBias); };
  RoundedLane<kWords> lane;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const uint32_t low = SelectBytes(rounded(x[i].x), rounded(x[i].y), 0x00000400u);
    const uint32_t high = SelectBytes(rounded(x[i].z), rounded(x[i].w), 0x00000400u);
    lane.q[i] = finite && !zero ? SelectBytes(low, high, 0x05040100u) : 0u;
  }
  lane.scale = !finite ? BitsToFloat(0x7fc00000u) : zero ? 0.0f : largest * (1.0f / kInt8Largest);
  return lane;
}

// Every lane gets its half's sum as `first`, and the other half's as `second`: the lanes of a block's first 16 features
// have them in order.
template <int kWave, int kWords>
__device__ __forceinline__ BlockSums BlockSumsOf(const uint32_t (&q)[kWords]) {
  constexpr int kHalfLanes = kBlockWords / kWords / 2;
  int32_t of_lane = 0;
#pragma unroll
  for (const uint32_t word : q) of_lane = Dot4(word, 0x01010101u, of_lane);
  const float half = GroupReduce<kHalfLanes, kWave>(BitsToFloat(static_cast<uint32_t>(of_lane)), [](float a, float b) {
    return BitsToFloat(FloatToBits(a) + FloatToBits(b));
  });
  return {static_cast<int32_t>(FloatToBits(half)),
          static_cast<int32_t>(FloatToBits(ButterflyPartner<kHalfLanes, kWave>(half)))};
}

}  // namespace gdn::gpu
