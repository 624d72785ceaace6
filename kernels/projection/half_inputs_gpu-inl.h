// Device code: scales of groups of x for products of fp16 numbers, as base/product_math.h says.
//
// Thread safety: all lanes of the wave call.
//
//   const GroupScale scale = GroupScaleOf<16, kWave>(LargestFinite(x, 0));  // 16 lanes have a group
//   const uint32_t pair = HalvesOf(x.x, x.y, scale.scale);
#pragma once

#include <cstdint>

#include "base/product_math.h"
#include "kernels/gpu/device.h"
#include "kernels/gpu/wave.h"
#include "kernels/projection/weight_vectors-inl.h"

namespace gdn::gpu {

// Sums of groups are kept divided by 2^kHalfSumExponent. They contain weights that are scaled to 2^15, so they would
// overflow long before the result.
inline constexpr uint32_t kHalfSumExponent = 24;

struct GroupScale {
  float scale, inverse;  // of x; the inverse divided by 2^kHalfSumExponent
};

// Returns the largest of `largest` and the magnitudes' bits of the finite elements.
__device__ __forceinline__ uint32_t LargestFinite(const Vec4& x, uint32_t largest) {
  float values[4];
  Unpack4(x, values);
#pragma unroll
  for (const float value : values) {
    const uint32_t bits = FloatToBits(value) & 0x7fffffffu;
    if (bits > largest && bits < 0x7f800000u) largest = bits;
  }
  return largest;
}

// Every lane gets HalfScaleOf of its kLanes lanes' largest bits, with the divided inverse.
template <int kLanes, int kWave>
__device__ __forceinline__ GroupScale GroupScaleOf(uint32_t of_lane) {
  // Bits travel between lanes as floats.
  const uint32_t largest = FloatToBits(GroupReduce<kLanes, kWave>(
      BitsToFloat(of_lane), [](float a, float b) { return FloatToBits(a) > FloatToBits(b) ? a : b; }));
  constexpr uint32_t kLargest = 127 + 14;
  const uint32_t exponent = largest >> 23 > kHalfSmallest ? largest >> 23 : kHalfSmallest;
  return {BitsToFloat((kLargest + 127 - exponent) << 23),
          BitsToFloat((exponent + 127 - kLargest - kHalfSumExponent) << 23)};
}

// Returns the sum of a block of 32 numbers to every lane that has four of them, in the words of two each.
template <int kWave>
__device__ __forceinline__ float HalfSumOf(uint32_t first, uint32_t second) {
  const auto pair = [](uint32_t word) {
    return FromF16(static_cast<uint16_t>(word)) + FromF16(static_cast<uint16_t>(word >> 16));
  };
  return GroupReduce<kHalfBlock / 4, kWave>(pair(first) + pair(second), [](float a, float b) { return a + b; });
}

// Returns a group's sum of products with integer weights from that of the rounded x.
__device__ __forceinline__ float GroupSumOf(float sum, float inverse) {
  return sum * (inverse * BitsToFloat((127u + kHalfSumExponent) << 23));
}

// Returns the output whose weights have this scale, from its sum of groups.
__device__ __forceinline__ float OutputOf(float sum, float scale) {
  return sum * InverseOf(scale) * BitsToFloat((127u + kHalfSumExponent) << 23);
}

}  // namespace gdn::gpu
