// Results of the chunked delta rule's first kernel for the second: a block of floats per (chunk, value head):
//   t      [C][C]  (I + A)^-1 diag(beta), zero above the diagonal
//   p      [C][C]  Q K^T e^{G_i-G_j} for j <= i, zero above
//   grown  [C]     e^{G_i}; past the chunk's tokens, that of its last one; 0 if G_i is NaN
//   tail   [C]     e^{G_C-G_i}
// Chunk c of sequence i, whose first row is r, is block r / C + i + c: unique, and found without a prefix sum.
//
// Thread safety: pure functions. For *_gpu.hip files only.
//
//   const float* t = p.workspace + ChunkBlock(first, sequence, chunk, value_heads, head) * ChunkWorkspace::kFloats;
#pragma once

#include <algorithm>

#include "base/status_macros.h"
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
  int32_t chunks;  // chunks of the longest sequence
};

// Launches the first kernel, which computes t, p and the decays of every chunk and value head into args.workspace. For
// one decay a head.
absl::Status PrepareChunks(const ChunkArgs& args, const DeviceBatch& batch, const Stream& stream);

template <int... kWidths>
constexpr bool HasWavesOf32(std::integer_sequence<int, kWidths...>) {
  return ((kWidths == 32) || ...);
}

// The chunks that one round of launches works on, because the workspace may not hold all chunks. They are chunks
// [chunk, chunk + chunks) of each of the sequences [sequence, sequence + sequences).
struct Span {
  float* states;  // S before each chunk, [sequences][chunks][HV][kKeys][value_slots]; only for waves of 32
  int32_t sequence, sequences;
  int32_t chunk, chunks;
  int32_t value_slots;  // V, rounded up to whole slices
};

// Returns K, which is at most 256, rounded up to 64, 128 or 256.
inline int32_t KeySlots(int32_t key_dim) { return key_dim <= 64 ? 64 : key_dim <= 128 ? 128 : 256; }

// The size of a span: the number of sequences, and the number of chunks of each.
struct SpanSize {
  int64_t sequences, chunks;
};
// Returns the largest span of a batch of `sequences` sequences of up to `chunks` chunks of `chunk_tokens` tokens that
// fits `floats` floats, if a chunk of one sequence takes `chunk_floats`. It is at least one chunk, or the chunks
// between two roundings of the base.
inline SpanSize SpanSizeOf(const StateLayout& layout, int64_t sequences, int64_t chunks, int32_t chunk_tokens,
                           int64_t chunk_floats, int64_t floats) {
  const int64_t blocks = std::max<int64_t>(1, floats / chunk_floats);
  const int64_t together = std::min(sequences, blocks);
  const int64_t multiple = layout.base_dtype() == DType::kF32 ? 1 : kBaseRoundTokens / chunk_tokens;
  const int64_t fitting = blocks / std::max<int64_t>(1, together) / multiple * multiple;
  return {together, std::min(chunks, std::max(multiple, fitting))};
}
// Calls launch(span) for each span of the batch in order, a group of sequences from its first chunk to its last, then
// the next. `span` has the fields that all share. Stops at the first error and returns it.
template <typename Launcher>
absl::Status ForEachSpan(const SpanSize& size, int64_t sequences, int64_t chunks, Span span, const Launcher& launch) {
  for (int64_t sequence = 0; sequence < sequences; sequence += size.sequences) {
    span.sequence = static_cast<int32_t>(sequence);
    span.sequences = static_cast<int32_t>(std::min(size.sequences, sequences - sequence));
    for (int64_t chunk = 0; chunk < chunks; chunk += size.chunks) {
      span.chunk = static_cast<int32_t>(chunk);
      span.chunks = static_cast<int32_t>(std::min(size.chunks, chunks - chunk));
      GDN_RETURN_IF_ERROR(launch(span));
    }
  }
  return absl::OkStatus();
}

// The path for waves of 32 (delta_rule_split_gpu.hip), for keys up to kSplitMostKeys elements. `prepared` has room for
// ChunkWorkspace::kFloats floats a (chunk, value head), `states` for SplitWorkspaceFloats floats. That is the states of
// as many chunks as fit 64 MiB, about what an L2 cache keeps until they are read. It holds at least the states of one
// chunk of one sequence, or of the chunks between two roundings of a bfloat16 base.
inline constexpr int32_t kSplitMostKeys = 128;
inline constexpr int64_t kSplitStateFloats = int64_t{16} << 20;
int64_t SplitWorkspaceFloats(const StateLayout& layout, int64_t sequences, int64_t max_length);
absl::Status DeltaRuleSplitGpu(const DeltaRuleParams& params, const DeviceBatch& batch, float* prepared, float* states,
                               const Stream& stream);

// The path on matrix units (delta_rule_matrix_gpu.hip): TakesMatrixUnits is true for waves of 32, one decay a head, and
// keys up to kSplitMostKeys elements. `workspace` has MatrixWorkspaceFloats floats, of which the states are as many as
// on the path above.
bool TakesMatrixUnits(const LayerDims& dims, const Stream& stream);
int64_t MatrixWorkspaceFloats(const DeltaRuleParams& params);
absl::Status DeltaRuleMatrixGpu(const DeltaRuleParams& params, const DeviceBatch& batch, float* workspace,
                                const Stream& stream);

// Results of the first kernel for decays by channel: a block of floats per (sequence, chunk of the span, value head).
// Keys have `slots` floats (KeySlots), zero past K and past the chunk's tokens:
//   t, p       [C][C]      as in the file's comment; the decays are multiplied in
//   decay      [slots]     e^{G_C}
//   k_grown    [C][slots]  e^{G_i} k_i; 0 if G_i is NaN
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

// DeltaRuleChannelChunkGpu launches the chunked delta rule for decays by channel (delta_rule_channel_gpu.hip), for K up
// to 256: it prepares a span of chunks, then walks it, until none is left. Strides must be at most 2^24 floats.
// `workspace` has ChannelChunkWorkspaceFloats floats on the device, which is 0 for longer keys.
int64_t ChannelChunkWorkspaceFloats(const DeltaRuleParams& params);
absl::Status DeltaRuleChannelChunkGpu(const DeltaRuleParams& params, const DeviceBatch& batch, float* workspace,
                                      const Stream& stream);
// Launch the two kernels of DeltaRuleChannelChunkGpu for one span; for waves of 32 and K up to kSplitMostKeys,
// split::LaunchBoth takes the second's place. `key_slots` is KeySlots(K). `exact`: K = key_slots, V is whole blocks,
// and pool, v and output are 16-byte aligned, so that no element needs a guard.
absl::Status PrepareChannelChunks(const ChunkArgs& args, const Span& span, int32_t key_slots, const Stream& stream);
absl::Status WalkChannelChunks(const ChunkArgs& args, const StateLayout& layout, const Span& span, bool exact,
                               const Stream& stream);

}  // namespace gdn::gpu
