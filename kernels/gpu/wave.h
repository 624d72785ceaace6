// Reductions and scans across lanes, from the seam's primitives: DPP within a row of 16 lanes (on gfx906 it fuses into
// the add), ds_swizzle across rows of a half wave, ds_bpermute across halves.
//
// All take part: every lane of the wave makes the call. Groups are aligned, kLanes a power of two up to kWave; blocks
// are one-dimensional. The order of summation depends on kLanes alone: it is the same for waves of 32 and 64.
//
//   const float dot = GroupSum<16, kWave>(partial);  // each 16 lanes get their sum, the same bits in all of them
#pragma once

#include <cstring>

#include "kernels/gpu/device.h"

namespace gdn::gpu {

template <int kWave>
__device__ __forceinline__ int LaneId() {
  return static_cast<int>(threadIdx.x) & (kWave - 1);
}

// x of lane ^ kMask, for the steps of a butterfly: kMask 1, 2, 4, 8, 16, 32. For 4 and 8 the mirrored lane of the half
// row or row, which after the smaller steps holds the same value.
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

// The same of a double, moved as two halves.
template <int kMask, int kWave>
__device__ __forceinline__ double ButterflyPartner(double x) {
  uint32_t halves[2];
  memcpy(halves, &x, sizeof(x));
  halves[0] = FloatToBits(ButterflyPartner<kMask, kWave>(BitsToFloat(halves[0])));
  halves[1] = FloatToBits(ButterflyPartner<kMask, kWave>(BitsToFloat(halves[1])));
  memcpy(&x, halves, sizeof(x));
  return x;
}

// combine() of all lanes' x, in pairs of lanes kMask = 1, 2, 4, .. apart; combine is commutative.
template <int kLanes, int kWave, int kMask = 1, typename T, typename Combine>
__device__ __forceinline__ T GroupReduce(T x, Combine combine) {
  static_assert(kLanes <= kWave);
  if constexpr (kMask < kLanes) {
    return GroupReduce<kLanes, kWave, 2 * kMask>(combine(x, ButterflyPartner<kMask, kWave>(x)), combine);
  } else {
    return x;
  }
}

// Of floats or doubles.
template <int kLanes, int kWave, typename T>
__device__ __forceinline__ T GroupSum(T x) {
  return GroupReduce<kLanes, kWave>(x, [](T a, T b) { return a + b; });
}

// fmaxf: a NaN loses against any number.
template <int kLanes, int kWave>
__device__ __forceinline__ float GroupMax(float x) {
  return GroupReduce<kLanes, kWave>(x, [](float a, float b) { return fmaxf(a, b); });
}

// Sum over the lanes up to and including this one.
template <int kWave>
__device__ __forceinline__ float WavePrefixSum(float x) {
  x += UpdateDpp<kWave, DppRowShr(1)>(0.0f, x);
  x += UpdateDpp<kWave, DppRowShr(2)>(0.0f, x);
  x += UpdateDpp<kWave, DppRowShr(4)>(0.0f, x);
  x += UpdateDpp<kWave, DppRowShr(8)>(0.0f, x);
  // Rows 1 and 3 add the sum of the row before them, then rows 2 and 3 that of the first half.
  x += UpdateDpp<kWave, kDppRowBcast15, 0xa>(0.0f, x);
  if constexpr (kWave == 64) x += UpdateDpp<kWave, kDppRowBcast31, 0xc>(0.0f, x);
  return x;
}

}  // namespace gdn::gpu
