// What the first kernel of the chunked delta rule leaves for the second, a block of floats a (chunk, value head):
//   t      [C][C]  (I + A)^-1 diag(beta), zero above the diagonal
//   p      [C][C]  Q K^T e^{G_i-G_j} for j <= i, zero above
//   grown  [C]     e^{G_i}; past the chunk's tokens that of its last one
//   tail   [C]     e^{G_C-G_i}
// Chunk c of a sequence whose first row is r is block r / C + i + c of sequence i: never two alike, and no prefix sum.
//
// Thread safety: pure functions. For *_gpu.hip files only.
//
//   const float* t = p.workspace + ChunkBlock(first, sequence, chunk, value_heads, head) * ChunkWorkspace::kFloats;
#pragma once

#include "kernels/common/base_columns_gpu-inl.h"
#include "kernels/delta_rule_chunk/delta_rule_chunk.h"

namespace gdn::gpu {

struct ChunkWorkspace {
  static constexpr int kC = kGpuChunkTokens;
  static constexpr int kT = 0;
  static constexpr int kP = kC * kC;
  static constexpr int kGrown = 2 * kC * kC;
  static constexpr int kTail = kGrown + kC;
  static constexpr int kFloats = kTail + kC;
};

__host__ __device__ __forceinline__ int64_t ChunkBlock(int64_t first_row, int32_t sequence, int64_t chunk,
                                                       int32_t value_heads, int32_t head) {
  return (first_row / kGpuChunkTokens + sequence + chunk) * value_heads + head;
}

struct ChunkArgs {
  DeltaRuleArgs rule;
  float* workspace;
  int32_t chunks;  // of the longest sequence
};

// The first kernel: t, p and the decays of every chunk.
absl::Status PrepareChunks(const ChunkArgs& args, const DeviceBatch& batch, const Stream& stream);

// The path for waves of 32 (delta_rule_split_gpu.hip), of keys up to kSplitMostKeys. `states` holds as many chunks'
// states as fit 64 MiB, about what an L2 keeps until they are read; never less than one chunk's of one sequence, or
// of the chunks between two roundings of a base of bfloat16.
inline constexpr int32_t kSplitMostKeys = 128;
inline constexpr int64_t kSplitStateFloats = int64_t{16} << 20;
int64_t SplitWorkspaceFloats(const StateLayout& layout, int64_t sequences, int64_t max_length);
absl::Status DeltaRuleSplitGpu(const DeltaRuleParams& params, const DeviceBatch& batch, float* prepared, float* states,
                               const Stream& stream);

}  // namespace gdn::gpu
