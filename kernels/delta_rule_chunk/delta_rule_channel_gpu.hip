// The chunked delta rule on the GPU where each key channel has a decay. With T, P and the decayed keys and queries from
// delta_rule_channel_prepare_gpu.hip:
//   X = V - (e^G K) S      U = T diag(beta) X      O = (e^G Q) S + P U      S <- diag(e^{G_C}) S + (e^{G_C-G} K)^T U
// Waves of 32 take delta_rule_states_gpu.hip and delta_rule_outputs_gpu.hip for K up to 128, which are those of decays
// by head but for where keys and queries come from; all others delta_rule_channel_walk_gpu.hip. What is prepared is
// seven times as much as for decays by head, so that it is prepared a span of chunks at a time. S passes from span to
// span through the base: unrounded, or cut where a base of bfloat16 is rounded anyway, so that no cut changes a bit.

#include <algorithm>
#include <cstdint>

#include "base/status_macros.h"
#include "kernels/delta_rule_chunk/delta_rule_split_gpu-inl.h"

namespace gdn::gpu {
namespace {

// Most floats of a span, states included. On waves of 32 lanes (an H200) a span costs the beginnings and ends of three
// kernels, and the state's walk has few blocks, so long spans are faster although they leave the L2. On other waves it
// is about as much as a small device can spare.
constexpr int64_t SpanFloats(int wave_width) { return int64_t{wave_width == 32 ? 64 : 16} << 20; }

bool Splits(const LayerDims& dims, int wave_width) { return wave_width == 32 && dims.key_dim <= kSplitMostKeys; }

// Floats of a chunk of one sequence.
int64_t PreparedFloats(const LayerDims& dims) {
  return int64_t{dims.value_heads} * ChannelWorkspace::Floats(KeySlots(dims.key_dim));
}
int64_t StateFloats(const LayerDims& dims, int wave_width) {
  return Splits(dims, wave_width) ? int64_t{dims.value_heads} * KeySlots(dims.key_dim) * split::ValueSlots(dims) : 0;
}

SpanSize SizeOfSpans(const StateLayout& layout, int64_t sequences, int64_t max_length, int wave_width) {
  const int64_t chunk_floats = PreparedFloats(layout.dims()) + StateFloats(layout.dims(), wave_width);
  return SpanSizeOf(layout, sequences, CeilDivide(max_length, kGpuChunkTokens), kGpuChunkTokens, chunk_floats,
                    SpanFloats(wave_width));
}

int64_t FloatsOnWaves(const DeltaRuleParams& params, int wave_width) {
  const StateLayout& layout = params.pool.layout;
  const SpanSize size = SizeOfSpans(layout, params.batch.sequences, params.batch.max_length(), wave_width);
  return size.sequences * size.chunks * (PreparedFloats(layout.dims()) + StateFloats(layout.dims(), wave_width));
}

template <int... kWidths>
int64_t MostFloats(const DeltaRuleParams& params, std::integer_sequence<int, kWidths...>) {
  return std::max({FloatsOnWaves(params, kWidths)...});
}

absl::Status LaunchSpan(ChunkArgs args, const DeltaRuleParams& params, const Span& span, const Stream& stream) {
  const StateLayout& layout = params.pool.layout;
  const LayerDims& dims = layout.dims();
  const int32_t slots = KeySlots(dims.key_dim);
  GDN_RETURN_IF_ERROR(PrepareChannelChunks(args, span, slots, stream));
  const bool aligned = Aligned16(params.pool.data, params.v, params.output) && params.v_stride % 4 == 0;
  const bool exact = aligned && dims.key_dim == slots && dims.value_dim % split::kSlice == 0;
  if constexpr (HasWavesOf32(WaveWidths())) {
    if (Splits(dims, stream.wave_width)) {
      args.rule.column_blocks = static_cast<int32_t>(CeilDivide(dims.value_dim, split::kSlice));
      return split::LaunchBoth(args, layout, span, /*by_channel=*/true, exact, stream);
    }
  }
  return WalkChannelChunks(args, layout, span, exact, stream);
}

}  // namespace

int64_t ChannelChunkWorkspaceFloats(const DeltaRuleParams& params) {
  constexpr int32_t kMostKeys = 256;  // longer ones are scanned
  return params.pool.layout.dims().key_dim > kMostKeys ? 0 : MostFloats(params, WaveWidths());
}

absl::Status DeltaRuleChannelChunkGpu(const DeltaRuleParams& params, const DeviceBatch& batch, float* workspace,
                                      const Stream& stream) {
  const StateLayout& layout = params.pool.layout;
  const LayerDims& dims = layout.dims();
  const SpanSize size = SizeOfSpans(layout, batch.sequences, batch.max_length, stream.wave_width);
  const int64_t chunks = CeilDivide(batch.max_length, kGpuChunkTokens);
  const ChunkArgs args{MakeDeltaRuleArgs(params, batch, 1), workspace, static_cast<int32_t>(chunks)};
  Span all{};
  all.states = workspace + size.sequences * size.chunks * PreparedFloats(dims);
  all.value_slots = static_cast<int32_t>(split::ValueSlots(dims));
  return ForEachSpan(size, batch.sequences, chunks, all,
                     [&](const Span& span) { return LaunchSpan(args, params, span, stream); });
}

}  // namespace gdn::gpu
