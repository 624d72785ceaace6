// The chunked delta rule in two kernels where waves have 32 lanes: only the states are walked one chunk after another,
// all chunks' outputs are computed at once. With T, P and the decays from delta_rule_chunk_prepare_gpu.hip:
//   delta_rule_states_gpu.hip    X = V - e^G K S      U = T diag(beta) X      S <- e^{G_C} S + K^T (e^{G_C-G} U)
//   delta_rule_outputs_gpu.hip   O = e^G Q S + P U
// Both work on a span of chunks and a group of sequences that the workspace holds; S passes from span to span through
// the base: unrounded, or cut where a base of bfloat16 is rounded anyway, so that no cut changes a bit.

#include "base/status_macros.h"
#include "kernels/delta_rule_chunk/delta_rule_split_gpu-inl.h"

namespace gdn::gpu {
namespace split {
namespace {

int64_t StateFloats(const LayerDims& dims) {
  return int64_t{dims.value_heads} * KeySlots(dims.key_dim) * ValueSlots(dims);
}

SpanSize SizeOfSpans(const StateLayout& layout, int64_t sequences, int64_t chunks) {
  return SpanSizeOf(layout, sequences, chunks, kGpuChunkTokens, StateFloats(layout.dims()), kSplitStateFloats);
}

}  // namespace
}  // namespace split

int64_t SplitWorkspaceFloats(const StateLayout& layout, int64_t sequences, int64_t max_length) {
  const SpanSize size = split::SizeOfSpans(layout, sequences, CeilDivide(max_length, kGpuChunkTokens));
  return size.sequences * size.chunks * split::StateFloats(layout.dims());
}

absl::Status DeltaRuleSplitGpu(const DeltaRuleParams& params, const DeviceBatch& batch, float* prepared, float* states,
                               const Stream& stream) {
  const LayerDims& dims = params.pool.layout.dims();
  const ChunkArgs args{MakeDeltaRuleArgs(params, batch, split::kSlice), prepared,
                       static_cast<int32_t>(CeilDivide(batch.max_length, kGpuChunkTokens))};
  GDN_RETURN_IF_ERROR(PrepareChunks(args, batch, stream));
  const bool exact = dims.key_dim == KeySlots(dims.key_dim) && dims.value_dim % split::kSlice == 0 &&
                     Aligned16(params.pool.data, params.output) && AlignedRows(params);
  const StateLayout& layout = params.pool.layout;
  Span all{};
  all.states = states;
  all.value_slots = static_cast<int32_t>(split::ValueSlots(dims));
  const SpanSize size = split::SizeOfSpans(layout, batch.sequences, args.chunks);
  return ForEachSpan(size, batch.sequences, args.chunks, all, [&](const Span& span) {
    return split::LaunchBoth(args, layout, span, /*by_channel=*/false, exact, stream);
  });
}

}  // namespace gdn::gpu
