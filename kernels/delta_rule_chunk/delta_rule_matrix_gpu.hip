// The chunked delta rule on matrix units, for waves of 32 and one decay a head, in chunks of 64 tokens:
//   delta_rule_matrix_prepare_gpu.hip    T, P and the decays of each chunk
//   delta_rule_matrix_states_gpu.hip     U and the states, chunk after chunk
//   delta_rule_matrix_outputs_gpu.hip    the outputs of all chunks of a span at once
// The formulas and the spans are those of delta_rule_split_gpu.hip, which serves the same shapes without matrix units.

#include "base/status_macros.h"
#include "kernels/delta_rule_chunk/delta_rule_matrix_gpu-inl.h"

namespace gdn::gpu {
namespace matrix {
namespace {

constexpr int kStateColumns = 16;  // of a block of the walk

int64_t ValueSlots(const LayerDims& dims) { return CeilDivide(dims.value_dim, kStateColumns) * kStateColumns; }
int64_t StateFloats(const LayerDims& dims) {
  return int64_t{dims.value_heads} * KeySlots(dims.key_dim) * ValueSlots(dims);
}
SpanSize SizeOfSpans(const StateLayout& layout, int64_t sequences, int64_t max_length) {
  return SpanSizeOf(layout, sequences, CeilDivide(max_length, kC), kC, StateFloats(layout.dims()), kSplitStateFloats);
}
int64_t PreparedFloats(const DeltaRuleParams& params) {
  return WorkspaceAt(params.batch.tokens(), params.batch.sequences, 0, params.pool.layout.dims().value_heads, 0);
}

}  // namespace
}  // namespace matrix

bool TakesMatrixUnits(const LayerDims& dims, const Stream& stream) {
  return stream.matrix_units && stream.wave_width == 32 && !dims.decays_by_channel() && dims.key_dim <= kSplitMostKeys;
}

int64_t MatrixWorkspaceFloats(const DeltaRuleParams& params) {
  const StateLayout& layout = params.pool.layout;
  const SpanSize size = matrix::SizeOfSpans(layout, params.batch.sequences, params.batch.max_length());
  return matrix::PreparedFloats(params) + size.sequences * size.chunks * matrix::StateFloats(layout.dims());
}

absl::Status DeltaRuleMatrixGpu(const DeltaRuleParams& params, const DeviceBatch& batch, float* workspace,
                                const Stream& stream) {
  const StateLayout& layout = params.pool.layout;
  const LayerDims& dims = layout.dims();
  const ChunkArgs args{MakeDeltaRuleArgs(params, batch, matrix::kStateColumns), workspace,
                       static_cast<int32_t>(CeilDivide(batch.max_length, matrix::kC))};
  const bool aligned = dims.key_dim % 4 == 0 && dims.value_dim % 4 == 0 &&
                       Aligned16(params.q, params.k, params.output) && params.q_stride % 4 == 0 &&
                       params.k_stride % 4 == 0;
  GDN_RETURN_IF_ERROR(matrix::LaunchPrepare(args, batch, aligned, stream));
  Span all{};
  all.states = workspace + matrix::PreparedFloats(params);
  all.value_slots = static_cast<int32_t>(matrix::ValueSlots(dims));
  const SpanSize size = matrix::SizeOfSpans(layout, batch.sequences, batch.max_length);
  return ForEachSpan(size, batch.sequences, args.chunks, all, [&](const Span& span) {
    GDN_RETURN_IF_ERROR(matrix::LaunchStates(args, layout, span, aligned, stream));
    return matrix::LaunchOutputs(args, span, aligned, stream);
  });
}

}  // namespace gdn::gpu
