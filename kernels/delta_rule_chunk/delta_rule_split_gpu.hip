// The chunked delta rule in two kernels where waves have 32 lanes: only the states are walked one chunk after another,
// all chunks' outputs are computed at once. With T, P and the decays from delta_rule_chunk_prepare_gpu.hip:
//   delta_rule_states_gpu.hip    X = V - e^G K S      U = T diag(beta) X      S <- e^{G_C} S + K^T (e^{G_C-G} U)
//   delta_rule_outputs_gpu.hip   O = e^G Q S + P U
// Both work on a span of chunks and a group of sequences that the workspace holds; S passes from span to span through
// the base: unrounded, or cut where a base of bfloat16 is rounded anyway, so that no cut changes a bit.

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/delta_rule_chunk/delta_rule_split_gpu-inl.h"

namespace gdn::gpu {
namespace split {
namespace {

int64_t ValueSlots(const LayerDims& dims) { return CeilDivide(dims.value_dim, kSlice) * kSlice; }
int64_t KeySlots(const LayerDims& dims) { return dims.key_dim <= 64 ? 64 : 128; }

struct SpanSize {
  int64_t sequences, chunks;
};
SpanSize SpanSizeOf(const StateLayout& layout, int64_t sequences, int64_t chunks) {
  const LayerDims& dims = layout.dims();
  const int64_t block_floats = dims.value_heads * KeySlots(dims) * ValueSlots(dims);
  const int64_t blocks = std::max<int64_t>(1, kSplitStateFloats / block_floats);
  const int64_t together = std::min(sequences, blocks);
  const int64_t multiple = layout.base_dtype() == DType::kF32 ? 1 : kBaseRoundTokens / kC;
  const int64_t fitting = blocks / std::max<int64_t>(1, together) / multiple * multiple;
  return {together, std::min(chunks, std::max(multiple, fitting))};
}

template <int kKeys>
absl::Status LaunchSplit(const ChunkArgs& args, const StateLayout& layout, const DeviceBatch& batch, bool exact,
                         float* states, const Stream& stream) {
  const SpanSize size = SpanSizeOf(layout, batch.sequences, args.chunks);
  Span span;
  span.states = states;
  span.value_slots = static_cast<int32_t>(ValueSlots(layout.dims()));
  for (int64_t sequence = 0; sequence < batch.sequences; sequence += size.sequences) {
    span.sequence = static_cast<int32_t>(sequence);
    span.sequences = static_cast<int32_t>(std::min(size.sequences, batch.sequences - sequence));
    for (int64_t chunk = 0; chunk < args.chunks; chunk += size.chunks) {
      span.chunk = static_cast<int32_t>(chunk);
      span.chunks = static_cast<int32_t>(std::min(size.chunks, args.chunks - chunk));
      GDN_RETURN_IF_ERROR((LaunchStates<kKeys, false>(args, layout, span, exact, stream)));
      GDN_RETURN_IF_ERROR((LaunchOutputs<kKeys, false>(args, span, exact, stream)));
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace split

int64_t SplitWorkspaceFloats(const StateLayout& layout, int64_t sequences, int64_t max_length) {
  const LayerDims& dims = layout.dims();
  const split::SpanSize size = split::SpanSizeOf(layout, sequences, CeilDivide(max_length, kGpuChunkTokens));
  return size.sequences * size.chunks * dims.value_heads * split::KeySlots(dims) * split::ValueSlots(dims);
}

absl::Status DeltaRuleSplitGpu(const DeltaRuleParams& params, const DeviceBatch& batch, float* prepared, float* states,
                               const Stream& stream) {
  const LayerDims& dims = params.pool.layout.dims();
  const ChunkArgs args{MakeDeltaRuleArgs(params, batch, split::kSlice), prepared,
                       static_cast<int32_t>(CeilDivide(batch.max_length, kGpuChunkTokens))};
  GDN_RETURN_IF_ERROR(PrepareChunks(args, batch, stream));
  const bool exact = dims.key_dim == split::KeySlots(dims) && dims.value_dim % split::kSlice == 0 &&
                     Aligned16(params.pool.data) && Aligned16(params.q, params.k, params.v) &&
                     Aligned16(params.output) && params.q_stride % 4 == 0 && params.k_stride % 4 == 0 &&
                     params.v_stride % 4 == 0;
  if (split::KeySlots(dims) == 64)
    return split::LaunchSplit<64>(args, params.pool.layout, batch, exact, states, stream);
  return split::LaunchSplit<128>(args, params.pool.layout, batch, exact, states, stream);
}

}  // namespace gdn::gpu
