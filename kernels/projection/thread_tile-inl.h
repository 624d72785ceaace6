// Device code: a thread's tile of results in registers, and its place among lanes that share operands.
//
// Thread safety: pure functions.
//
//   const LanePlace place = PlaceOfLane<8>(lane);
//   float sum[8][8];  SetZero(sum);
//   AddOuters(sum, 4, x, w);  // rows 4 to 7; w: two vectors of four outputs
#pragma once

#include "kernels/gpu/device.h"

namespace gdn::gpu {

// A lane's row and column, counted in lanes, in a tile that is kRows lanes high. Two neighbouring lanes share a row,
// and lanes two apart share a column, so NVIDIA's LDS serves half a wave's 16-byte loads of either operand at once.
struct LanePlace {
  int row;
  int column;
};
template <int kRows>
__device__ __forceinline__ LanePlace PlaceOfLane(int lane) {
  static_assert(kRows >= 2);
  return {lane / 2 % kRows, lane % 2 + lane / (2 * kRows) * 2};
}

template <int kRows, int kOutputs>
__device__ __forceinline__ void SetZero(float (&tile)[kRows][kOutputs]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) tile[i][j] = 0.0f;
  }
}

// c + x * w: of float32, or with kPairs of the pairs of fp16 numbers in their bits.
template <bool kPairs>
__device__ __forceinline__ float MultiplyAdd(float x, float w, float c) {
  if constexpr (kPairs) return Dot2(FloatToBits(x), FloatToBits(w), c);
  return fmaf(x, w, c);
}

// row[j] += x * w[j] for all outputs j, the elements of w's vectors in order.
template <bool kPairs = false, int kOutputs, int kVectors>
__device__ __forceinline__ void AddOuter(float (&row)[kOutputs], float x, const Vec4 (&w)[kVectors]) {
  static_assert(kOutputs == 4 * kVectors);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    row[4 * v] = MultiplyAdd<kPairs>(x, w[v].x, row[4 * v]);
    row[4 * v + 1] = MultiplyAdd<kPairs>(x, w[v].y, row[4 * v + 1]);
    row[4 * v + 2] = MultiplyAdd<kPairs>(x, w[v].z, row[4 * v + 2]);
    row[4 * v + 3] = MultiplyAdd<kPairs>(x, w[v].w, row[4 * v + 3]);
  }
}

// tile[first + i][j] += x[i] * w[j] for i 0 .. 3 and all outputs j, the elements of w's vectors in order.
template <bool kPairs = false, int kRows, int kOutputs, int kVectors>
__device__ __forceinline__ void AddOuters(float (&tile)[kRows][kOutputs], int first, const Vec4& x,
                                          const Vec4 (&w)[kVectors]) {
  AddOuter<kPairs>(tile[first], x.x, w);
  AddOuter<kPairs>(tile[first + 1], x.y, w);
  AddOuter<kPairs>(tile[first + 2], x.z, w);
  AddOuter<kPairs>(tile[first + 3], x.w, w);
}

}  // namespace gdn::gpu
