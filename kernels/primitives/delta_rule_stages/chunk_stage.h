// What the stages' kernels share: which chunk a block has, tiles of features in LDS, decay factors, the choice of C.
//
// Device code. Thread safety: pure functions but for the LDS they are given; a barrier is the caller's.
//
//   const Chunk chunk = FindChunk(batch, blockIdx.x / heads);
//   LoadTile<kC, 4 * kC>(s.tile, base, stride, rows, features, aligned);
#pragma once

#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "kernels/gpu/vec4_math.h"
#include "kernels/primitives/delta_rule_stages/delta_rule_stages.h"

namespace gdn::gpu {

// Features (columns) of an LDS tile; its rows are padded by one Vec4, against bank conflicts.
inline constexpr int kTileFeatures = 32;
inline constexpr int kTileStride = kTileFeatures + 4;

struct Chunk {
  int64_t index;  // among all chunks
  int64_t first;  // token
  int rows;       // 1 .. C
};

// The chunk with this index: of the last sequence whose chunks begin at or before it (empty ones begin where the next
// does).
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

// e^difference of two decay sums, rounded once the difference is taken. What float32 cannot tell from 0 is cut first,
// so that the rounding cannot overflow; a NaN comes through.
__device__ __forceinline__ float DecayFactor(double difference) {
  return expf(static_cast<float>(difference < -1000.0 ? -1000.0 : difference));
}

__device__ __forceinline__ Vec4 Scale(const Vec4& v, float s) { return {v.x * s, v.y * s, v.z * s, v.w * s}; }

// Whether rows `stride` floats apart may be read and written four floats at a time.
__device__ __forceinline__ bool RowsAligned(const float* base, int64_t stride) {
  return ((reinterpret_cast<uintptr_t>(base) | static_cast<uintptr_t>(stride * 4)) & 15) == 0;
}

// kRows x kTileFeatures of LDS from rows `stride` floats apart at `base`, row i times scale(i); 0 past `rows` and
// `features`.
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

// function(std::integral_constant<int, C>); the batch is valid.
template <typename Function>
absl::Status WithChunk(const ChunkedBatch& batch, Function&& function) {
  if (batch.chunk_tokens == 16) return function(std::integral_constant<int, 16>());
  if (batch.chunk_tokens == 32) return function(std::integral_constant<int, 32>());
  return function(std::integral_constant<int, 64>());
}

}  // namespace gdn::gpu
