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

// row[j] += x * w[j] for all outputs j, the elements of w's vectors in order: float32 numbers, or with kPairs the pairs
// of fp16 numbers in their bits.
template <bool kPairs = false, int kOutputs, int kVectors>
__device__ __forceinline__ void AddOuter(float (&row)[kOutputs], float x, const Vec4 (&w)[kVectors]) {
  static_assert(kOutputs == 4 * kVectors);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    float* const sum = row + 4 * v;
    if constexpr (kPairs) {
      sum[0] = Dot2(FloatToBits(x), FloatToBits(w[v].x), sum[0]);
      sum[1] = Dot2(FloatToBits(x), FloatToBits(w[v].y), sum[1]);
      sum[2] = Dot2(FloatToBits(x), FloatToBits(w[v].z), sum[2]);
      sum[3] = Dot2(FloatToBits(x), FloatToBits(w[v].w), sum[3]);
    } else {
      FmaEach(x, w[v], sum);
    }
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
