// What the first kernel of the chunked delta rule leaves for the second, a block of floats a (chunk, value head):
//   t      [C][C]  (I + A)^-1 diag(beta), zero above the diagonal
//   p      [C][C]  Q K^T e^{G_i-G_j} for j <= i, zero above
//   grown  [C]     e^{G_i}; past the chunk's tokens that of its last one; 0 where G_i is NaN
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

template <int... kWidths>
constexpr bool HasWavesOf32(std::integer_sequence<int, kWidths...>) {
  return ((kWidths == 32) || ...);
}

// The path for waves of 32 (delta_rule_split_gpu.hip), of keys up to kSplitMostKeys. `states` holds as many chunks'
// states as fit 64 MiB, about what an L2 keeps until they are read; never less than one chunk's of one sequence, or
// of the chunks between two roundings of a base of bfloat16.
// The chunks that one round of launches works on, where not all are prepared at once.
struct Span {
  float* states;  // [sequences][chunks][HV][kKeys][value_slots]; of the path for waves of 32
  int32_t sequence, sequences;
  int32_t chunk, chunks;
  int32_t value_slots;  // V up to whole slices
};

inline constexpr int32_t kSplitMostKeys = 128;
inline constexpr int64_t kSplitStateFloats = int64_t{16} << 20;
int64_t SplitWorkspaceFloats(const StateLayout& layout, int64_t sequences, int64_t max_length);
absl::Status DeltaRuleSplitGpu(const DeltaRuleParams& params, const DeviceBatch& batch, float* prepared, float* states,
                               const Stream& stream);

// What the first kernel leaves where decays are by channel, a block of floats a (sequence, chunk of the span, value
// head); keys are `slots` floats, K up to 64, 128 or 256, zero past K and past the chunk's tokens:
//   t, p       [C][C]      as above; the decays are in their products
//   decay      [slots]     e^{G_C}
//   k_grown    [C][slots]  e^{G_i} k_i; 0 where G_i is NaN
//   k_tail     [C][slots]  e^{G_C-G_i} k_i
//   q_grown    [C][slots]  e^{G_i} q_i
struct ChannelWorkspace {
  static constexpr int kC = kGpuChunkTokens;
  static constexpr int kT = 0;
  static constexpr int kP = kC * kC;
  static constexpr int kDecay = 2 * kC * kC;
  static constexpr int KGrown(int slots) { return kDecay + slots; }
  static constexpr int KTail(int slots) { return KGrown(slots) + kC * slots; }
  static constexpr int QGrown(int slots) { return KTail(slots) + kC * slots; }
  static constexpr int Floats(int slots) { return QGrown(slots) + kC * slots; }
};
inline int32_t ChannelKeySlots(int32_t key_dim) { return key_dim <= 64 ? 64 : key_dim <= 128 ? 128 : 256; }

// The chunked delta rule where decays are by channel (delta_rule_channel_gpu.hip), K up to 256: a span of chunks is
// prepared, then walked. Strides are up to 2^24 floats.
int64_t ChannelChunkWorkspaceFloats(const DeltaRuleParams& params);
absl::Status DeltaRuleChannelChunkGpu(const DeltaRuleParams& params, const DeviceBatch& batch, float* workspace,
                                      const Stream& stream);
// Its kernels: one span's. `key_slots` is ChannelKeySlots of K.
absl::Status PrepareChannelChunks(const ChunkArgs& args, const Span& span, int32_t key_slots, const Stream& stream);
absl::Status WalkChannelChunks(const ChunkArgs& args, const StateLayout& layout, const Span& span, bool exact,
                               const Stream& stream);

}  // namespace gdn::gpu
