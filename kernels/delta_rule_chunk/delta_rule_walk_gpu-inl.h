// The parts of the walk over a sequence's chunks that do not depend on how S decays: loads of a chunk's rows into LDS,
// products with S spread over a group's lanes, products with a chunk's triangular matrices.
//
// Mapping of threads: delta_rule_chunk_gpu.hip. Thread safety: pure functions. For *_gpu.hip files only.
//
//   mover.Store(q_rows, p.q_stride, rows, p.key_dim, sh.rows);
//   SyncThreads();
//   ReadState<kWave, kElements, kColumns>(sh.rows, sh.values, lane, my_local, s, o);
#pragma once

#include "kernels/delta_rule_chunk/chunk_workspace_gpu-inl.h"

namespace gdn::gpu::walk {

inline constexpr int kC = kGpuChunkTokens;
inline constexpr int kStride = kC + 4;
static_assert(kBaseRoundTokens % kC == 0);

template <int kElements, int kColumns>
struct WalkShared {
  LdsArray<float, kC * kColumnLanes * kElements> rows;            // Q, then K
  LdsArray<float, kDeltaRuleGroups * kColumns * kStride> values;  // X, then U, by column
  LdsArray<float, kC * kStride> t;
  LdsArray<float, kC * kStride> p;
  LdsArray<float, 2 * kC> decays;  // e^G, then e^{G_C-G}
};

// Moves a chunk's `rows` rows of q or k to LDS, rows of 16 kElements floats, zero past K and past the last row. Whole
// chunks of exact shapes take two steps: Fetch loads while the block computes, Store writes. Others are loaded and
// stored by Store. `from` is the first row, rows are `stride` floats apart. All threads of the block call.
template <int kElements, bool kExact>
struct RowMover {
  static constexpr int kRowVectors = kColumnLanes * kElements / 4;
  static constexpr int kStep = kDeltaRuleThreads / kRowVectors;
  static constexpr int kMoved = kC / kStep;

  Vec4 ahead[kMoved];

  __device__ __forceinline__ void Fetch(const float* from, int64_t stride, int rows) {
    if (!kExact || rows < kC) return;
    const uint32_t offset = threadIdx.x / kRowVectors * static_cast<uint32_t>(stride) + threadIdx.x % kRowVectors * 4;
#pragma unroll
    for (int n = 0; n < kMoved; ++n) ahead[n] = Load4(At(from + n * kStep * stride, offset));
  }
  template <typename Rows>
  __device__ __forceinline__ void Store(const float* from, int64_t stride, int rows, int key_dim, Rows& to) const {
    if (kExact && rows == kC) {
#pragma unroll
      for (int n = 0; n < kMoved; ++n) to.Store4((n * kDeltaRuleThreads + static_cast<int>(threadIdx.x)) * 4, ahead[n]);
      return;
    }
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kC * kRowVectors * 4; i += kDeltaRuleThreads) {
      const int row = i / (kRowVectors * 4);
      const int at = i % (kRowVectors * 4);
      to[i] = row < rows && at < key_dim ? from[row * stride + at] : 0.0f;
    }
  }
};

template <int kElements, typename Rows>
__device__ __forceinline__ void RowFragment(Rows& rows, int row, int lane, float (&x)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; i += 4) {
    Unpack4(rows.Load4((row * kElements + i) * kColumnLanes + lane * 4), x + i);
  }
}

template <int kElements>
__device__ __forceinline__ float DotInOrder(const float (&a)[kElements], const float (&b)[kElements]) {
  float dot = a[0] * b[0];
#pragma unroll
  for (int i = 1; i < kElements; ++i) dot = fmaf(a[i], b[i], dot);
  return dot;
}

// Multiplies the chunk's rows in LDS (q or k) with the group's columns of S. out[b] is the product of row b * 16 /
// kColumns + lane / kColumns with the group's column lane % kColumns; `column` is that column's number in the block.
// The loop is not unrolled, to save registers: its results pass through `values`, where each is read by the lane that
// wrote it.
template <int kWave, int kElements, int kColumns, typename Rows, typename Values>
__device__ __forceinline__ void ReadState(Rows& rows, Values& values, int lane, int column,
                                          const float (&s)[kColumns][kElements], float (&out)[2 * kColumns]) {
  constexpr int kRows = 16 / kColumns;
#pragma unroll 1
  for (int b = 0; b < kC / kRows; ++b) {
    float sum[8];
#pragma unroll
    for (int r = 0; r < kRows / 2; ++r) {
      if (kElements == 4 && r == 4) WaveBarrier();  // otherwise the compiler loads all 16 rows ahead, and spills
      float low[kElements];
      float high[kElements];
      RowFragment<kElements>(rows, b * kRows + r, lane, low);
      RowFragment<kElements>(rows, b * kRows + kRows / 2 + r, lane, high);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        sum[r * kColumns + c] = HalveSums<8, kWave>(DotInOrder(s[c], low), DotInOrder(s[c], high), lane);
      }
    }
    values[column * kStride + b * kRows + lane / kColumns] = SumOfLane<8, kWave, 4>(sum, lane);
  }
#pragma unroll
  for (int b = 0; b < kC / kRows; ++b) out[b] = values[column * kStride + b * kRows + lane / kColumns];
}

// out += matrix * x: `matrix` [C][kStride] is lower triangular, x is column `column` of `values` [..][kStride]. out[b]
// is row b * 16 / kColumns + lane / kColumns, as in ReadState.
template <int kColumns, typename Matrix, typename Values>
__device__ __forceinline__ void MultiplyLower(Matrix& matrix, Values& values, int lane, int column,
                                              float (&out)[2 * kColumns]) {
  constexpr int kRows = 16 / kColumns;
#pragma unroll
  for (int j = 0; j < kC; j += 4) {
    const Vec4 x = values.Load4(column * kStride + j);
#pragma unroll
    for (int b = j / kRows; b < kC / kRows; ++b) {
      const Vec4 m = matrix.Load4((b * kRows + lane / kColumns) * kStride + j);
      out[b] = fmaf(m.w, x.w, fmaf(m.z, x.z, fmaf(m.y, x.y, fmaf(m.x, x.x, out[b]))));
    }
  }
}

template <int kColumns, typename Values>
__device__ __forceinline__ void WriteValues(Values& values, int lane, int column, const float (&x)[2 * kColumns]) {
  constexpr int kRows = 16 / kColumns;
#pragma unroll
  for (int b = 0; b < 2 * kColumns; ++b) values[column * kStride + b * kRows + lane / kColumns] = x[b];
}

// s += rows^T values, summed over the chunk's rows in order, for the lane's elements and the columns of group `group`.
template <int kElements, int kColumns, typename Rows, typename Values>
__device__ __forceinline__ void AddOuterProducts(Rows& rows, Values& values, int group, int lane,
                                                 float (&s)[kColumns][kElements]) {
#pragma unroll 1
  for (int row = 0; row < kC; row += 4) {
    float tailed[kColumns][4];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const Vec4 v = values.Load4((group * kColumns + c) * kStride + row);
      tailed[c][0] = v.x;
      tailed[c][1] = v.y;
      tailed[c][2] = v.z;
      tailed[c][3] = v.w;
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float k[kElements];
      RowFragment<kElements>(rows, row + r, lane, k);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < kElements; ++i) s[c][i] = fmaf(k[i], tailed[c][r], s[c][i]);
      }
    }
  }
}

// True if each group of lanes should take two value columns, not one: V is above 16, and at least two blocks remain for
// every processor.
inline bool TwoColumns(const LayerDims& dims, int64_t sequences, const Stream& stream) {
  const int64_t wide_blocks = sequences * dims.value_heads * CeilDivide(dims.value_dim, 2 * kDeltaRuleGroups);
  return dims.value_dim > kDeltaRuleGroups && wide_blocks >= int64_t{stream.processors} * 2;
}

}  // namespace gdn::gpu::walk
