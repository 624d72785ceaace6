// Reductions across lanes: DPP within a row of 16 lanes (on gfx906 it fuses into the add), ds_swizzle across rows of a
// half wave, ds_bpermute across halves.
//
// Every lane of the wave must make the call. Groups are aligned and kLanes is a power of two up to kWave; blocks are
// one-dimensional. The order of summation depends on kLanes only: it is the same for waves of 32 and 64.
//
//   const float dot = GroupSum<16, kWave>(partial);  // all 16 lanes of a group get its sum, with the same bits
#pragma once

#include <cstring>

#include "kernels/gpu/device.h"

namespace gdn::gpu {

template <int kWave>
__device__ __forceinline__ int LaneId() {
  return static_cast<int>(threadIdx.x) & (kWave - 1);
}

// Returns x of the partner lane in step kMask of a butterfly: 1, 2, 4, 8, 16, or 32 in waves of 64. The partner is lane
// ^ kMask, but for 4 and 8 the mirrored lane of the half row (7 - i) or row (15 - i). That lane lies in the same other
// half, so a sum over all steps has each lane once. Every lane of the wave calls.
template <int kMask, int kWave>
__device__ __forceinline__ float ButterflyPartner(float x) {
  static_assert(kMask == 1 || kMask == 2 || kMask == 4 || kMask == 8 || kMask == 16 || (kMask == 32 && kWave == 64));
  if constexpr (kMask == 1) return UpdateDpp<kWave, DppQuadPerm(1, 0, 3, 2)>(x, x);
  if constexpr (kMask == 2) return UpdateDpp<kWave, DppQuadPerm(2, 3, 0, 1)>(x, x);
  if constexpr (kMask == 4) return UpdateDpp<kWave, kDppRowHalfMirror>(x, x);
  if constexpr (kMask == 8) return UpdateDpp<kWave, kDppRowMirror>(x, x);
  if constexpr (kMask == 16) return DsSwizzle<kWave, SwizzlePattern(31, 0, 16)>(x);
  if constexpr (kMask == 32) return Bpermute<kWave>(LaneId<kWave>() ^ 32, x);
}

// Returns the double x of the partner lane, moved as two 32-bit halves. The partner is lane ^ kMask, but for kMask 4
// and 8 the mirrored lane of the half row (7 - i) or row (15 - i). Every lane of the wave calls.
template <int kMask, int kWave>
__device__ __forceinline__ double ButterflyPartner(double x) {
  uint32_t halves[2];
  memcpy(halves, &x, sizeof(x));
  halves[0] = FloatToBits(ButterflyPartner<kMask, kWave>(BitsToFloat(halves[0])));
  halves[1] = FloatToBits(ButterflyPartner<kMask, kWave>(BitsToFloat(halves[1])));
  memcpy(&x, halves, sizeof(x));
  return x;
}

// Combines the x of a group's kLanes lanes (a power of two) with combine(), which must be commutative; every lane gets
// the result. Every lane of the wave calls. kMask is for the recursion: leave it at 1.
template <int kLanes, int kWave, int kMask = 1, typename T, typename Combine>
__device__ __forceinline__ T GroupReduce(T x, Combine combine) {
  static_assert(kLanes <= kWave);
  if constexpr (kMask < kLanes) {
    return GroupReduce<kLanes, kWave, 2 * kMask>(combine(x, ButterflyPartner<kMask, kWave>(x)), combine);
  } else {
    return x;
  }
}

// Returns to every lane the sum of x over its group of kLanes lanes, with the same bits. T is float or double. Every
// lane of the wave calls.
template <int kLanes, int kWave, typename T>
__device__ __forceinline__ T GroupSum(T x) {
  return GroupReduce<kLanes, kWave>(x, [](T a, T b) { return a + b; });
}

}  // namespace gdn::gpu
