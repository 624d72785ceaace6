// Shared by the stages' kernels: a block's chunk, tiles of features in LDS, decay factors, dispatch on C.
//
// Device code. Thread safety: functions write only LDS they are given; the caller places the barriers.
//
//   const Chunk chunk = FindChunk(batch, blockIdx.x / heads);
//   LoadTile<kC, 4 * kC>(s.tile, base, stride, rows, features, aligned);
#pragma once

#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "kernels/gpu/launch.h"
#include "kernels/gpu/vec4_math.h"
#include "kernels/primitives/delta_rule_stages/delta_rule_stages.h"

namespace gdn::gpu {

// Features (columns) of an LDS tile. Rows are kTileStride floats apart: padded by one Vec4 to avoid bank conflicts.
inline constexpr int kTileFeatures = 32;
inline constexpr int kTileStride = kTileFeatures + 4;

struct Chunk {
  int64_t index;  // number of the chunk among all chunks of the batch
  int64_t first;  // the chunk's first token in the batch
  int rows;       // tokens of the chunk, 1 .. C
};

// Returns the chunk with this index, 0 .. batch.chunks - 1. Its sequence is the last one whose first chunk is not after
// it (an empty sequence begins where the next one does).
__device__ __forceinline__ Chunk FindChunk(const ChunkedBatch& batch, int64_t index) {
  int low = 0;
  int high = batch.sequences - 1;
  while (low < high) {
    const int middle = low + (high - low + 1) / 2;
    if (batch.chunk_offsets[middle] <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int64_t first = batch.cu_seqlens[low] + (index - batch.chunk_offsets[low]) * batch.chunk_tokens;
  const int64_t left = batch.cu_seqlens[low + 1] - first;
  return {index, first, static_cast<int>(left < batch.chunk_tokens ? left : batch.chunk_tokens)};
}

// Returns e^difference for the difference, <= 0, of two decay sums; it is rounded to float32 only after the
// subtraction. Differences below -1000 (a decay of 0 in float32) are clamped, so that the rounding cannot overflow. NaN
// stays NaN.
__device__ __forceinline__ float DecayFactor(double difference) {
  return expf(static_cast<float>(difference < -1000.0 ? -1000.0 : difference));
}

__device__ __forceinline__ Vec4 Scale(const Vec4& v, float s) { return {v.x * s, v.y * s, v.z * s, v.w * s}; }

// True if rows `stride` floats apart from `base` on all start at a multiple of 16 bytes, to be read four floats at a
// time.
__device__ __forceinline__ bool RowsAligned(const float* base, int64_t stride) {
  return ((reinterpret_cast<uintptr_t>(base) | static_cast<uintptr_t>(stride * 4)) & 15) == 0;
}

// Loads kRows x kTileFeatures floats into LDS from rows `stride` floats apart at `base`, row i times scale(i). Elements
// past `rows` and `features`, both counted from `base`, are not read and become zero. `aligned`: RowsAligned. All
// kThreads threads of the block call.
template <int kRows, int kThreads, typename Array, typename RowScale>
__device__ __forceinline__ void LoadScaledTile(Array& tile, const float* base, int64_t stride, int rows, int features,
                                               bool aligned, RowScale&& scale) {
  constexpr int kVectors = kTileFeatures / 4;
  for (int item = static_cast<int>(threadIdx.x); item < kRows * kVectors; item += kThreads) {
    const int row = item / kVectors;
    const int column = item % kVectors * 4;
    Vec4 v{0.0f, 0.0f, 0.0f, 0.0f};
    if (row < rows) v = Scale(LoadSome(base + row * stride + column, features - column, aligned), scale(row));
    tile.Store4(row * kTileStride + column, v);
  }
}

template <int kRows, int kThreads, typename Array>
__device__ __forceinline__ void LoadTile(Array& tile, const float* base, int64_t stride, int rows, int features,
                                         bool aligned) {
  LoadScaledTile<kRows, kThreads>(tile, base, stride, rows, features, aligned, [](int) { return 1.0f; });
}

// Adds a lane's share of the product left * right, whose rows number kRows and whose inner size is kInner, to `low` and
// `high`. Both hold columns column .. column + 3: `low` of row `row`, below kRows / 2, `high` of row `row` + kRows / 2.
// In LDS, rows of `left` are kLeftStride floats apart, rows of `right` kTileStride.
template <int kRows, int kInner, int kLeftStride, typename Left, typename Right>
__device__ __forceinline__ void MultiplyTiles(Left& left, Right& right, int row, int column, Vec4& low, Vec4& high) {
#pragma unroll 2
  for (int j = 0; j < kInner; j += 4) {
    const Vec4 x_low = left.Load4(row * kLeftStride + j);
    const Vec4 x_high = left.Load4((row + kRows / 2) * kLeftStride + j);
    const Vec4 y0 = right.Load4(j * kTileStride + column);
    const Vec4 y1 = right.Load4((j + 1) * kTileStride + column);
    const Vec4 y2 = right.Load4((j + 2) * kTileStride + column);
    const Vec4 y3 = right.Load4((j + 3) * kTileStride + column);
    MultiplyAdd(x_low.x, y0, low);
    MultiplyAdd(x_high.x, y0, high);
    MultiplyAdd(x_low.y, y1, low);
    MultiplyAdd(x_high.y, y1, high);
    MultiplyAdd(x_low.z, y2, low);
    MultiplyAdd(x_high.z, y2, high);
    MultiplyAdd(x_low.w, y3, low);
    MultiplyAdd(x_high.w, y3, high);
  }
}

// Launches the kernel that kernel(c) returns, c a std::integral_constant of C, for valid parameters. Along x there is a
// block for each of `units` units (chunks or sequences) and value head, along y one for each of `slices` slices of the
// features. A block has `threads` threads (0: 4 C).
template <typename Params, typename Kernel>
absl::Status LaunchStage(const char* name, const Params& params, int64_t units, int64_t slices, const Stream& stream,
                         const Kernel& kernel, int threads = 0) {
  const auto launch = [&](auto c) {
    return Launch(name, kernel(c), {units * params.batch.dims.value_heads, slices}, threads > 0 ? threads : 4 * c(),
                  stream, params);
  };
  if (params.batch.chunk_tokens == 16) return launch(std::integral_constant<int, 16>());
  if (params.batch.chunk_tokens == 32) return launch(std::integral_constant<int, 32>());
  return launch(std::integral_constant<int, 64>());
}

}  // namespace gdn::gpu
