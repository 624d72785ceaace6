// Device code: a thread's tile of results, [rows][8] in registers, and its place among the lanes that share operands.
//
// Thread safety: pure functions.
//
//   const LanePlace place = PlaceOfLane<8>(lane);
//   float sum[8][8];  SetZero(sum);
//   AddOuters(sum, 4, x, w0, w1);  // rows 4 to 7
#pragma once

#include "kernels/gpu/device.h"

namespace gdn::gpu {

inline constexpr int kThreadOutputs = 8;

// Of kRows lanes down a tile and as many across as there are. Neighbours two by two share their row, and two further on
// their column: then NVIDIA's LDS serves half a wave's 16-byte loads of either operand at once.
struct LanePlace {
  int row;
  int column;
};
template <int kRows>
__device__ __forceinline__ LanePlace PlaceOfLane(int lane) {
  static_assert(kRows >= 2);
  return {lane / 2 % kRows, lane % 2 + lane / (2 * kRows) * 2};
}

template <int kRows>
__device__ __forceinline__ void SetZero(float (&tile)[kRows][kThreadOutputs]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kThreadOutputs; ++j) tile[i][j] = 0.0f;
  }
}

// row[j] += x * w[j].
__device__ __forceinline__ void AddOuter(float (&row)[kThreadOutputs], float x, const Vec4& w0, const Vec4& w1) {
  row[0] = fmaf(x, w0.x, row[0]);
  row[1] = fmaf(x, w0.y, row[1]);
  row[2] = fmaf(x, w0.z, row[2]);
  row[3] = fmaf(x, w0.w, row[3]);
  row[4] = fmaf(x, w1.x, row[4]);
  row[5] = fmaf(x, w1.y, row[5]);
  row[6] = fmaf(x, w1.z, row[6]);
  row[7] = fmaf(x, w1.w, row[7]);
}

// Rows first to first + 3, by x's four values.
template <int kRows>
__device__ __forceinline__ void AddOuters(float (&tile)[kRows][kThreadOutputs], int first, const Vec4& x,
                                          const Vec4& w0, const Vec4& w1) {
  AddOuter(tile[first], x.x, w0, w1);
  AddOuter(tile[first + 1], x.y, w0, w1);
  AddOuter(tile[first + 2], x.z, w0, w1);
  AddOuter(tile[first + 3], x.w, w0, w1);
}

}  // namespace gdn::gpu
