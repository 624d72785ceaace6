#include "tools/gdn_parity/chunk_by_primitives.h"

#include "base/status_macros.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/primitives/decay_mask/decay_mask.h"
#include "kernels/primitives/elementwise/elementwise.h"
#include "kernels/primitives/gemm/gemm.h"
#include "kernels/primitives/masks/masks.h"
#include "kernels/primitives/triangular_solve/triangular_solve.h"

namespace gdn::parity {

absl::StatusOr<ChunkByPrimitives> ChunkByPrimitives::Make(Backend& backend, int64_t tokens, int64_t key_dim,
                                                          int64_t value_dim) {
  ChunkByPrimitives steps(backend);
  GDN_ASSIGN_OR_RETURN(steps.stream_, GpuStreamOf(backend));
  steps.key_dim_ = key_dim;
  steps.value_dim_ = value_dim;
  for (float** square : {&steps.mask_, &steps.attention_, &steps.inverse_, &steps.scores_}) {
    GDN_ASSIGN_OR_RETURN(*square, steps.data_.Poisoned(tokens * tokens));
  }
  for (float** vector : {&steps.from_start_, &steps.to_end_}) {
    GDN_ASSIGN_OR_RETURN(*vector, steps.data_.Poisoned(tokens));
  }
  GDN_ASSIGN_OR_RETURN(steps.scaled_rows_, steps.data_.Poisoned(tokens * key_dim));
  for (float** rows : {&steps.residuals_, &steps.updates_}) {
    GDN_ASSIGN_OR_RETURN(*rows, steps.data_.Poisoned(tokens * value_dim));
  }
  return steps;
}

absl::Status ChunkByPrimitives::ScaleRows(const ChunkView& chunk, const float* rows, const float* factors,
                                          int64_t factor_stride, float* out) {
  return VectorMultiplyGpu({.vector = VectorKind::kColumn,
                            .rows = chunk.tokens,
                            .cols = key_dim_,
                            .x = rows,
                            .x_stride = rows == out ? key_dim_ : chunk.key_stride,
                            .v = factors,
                            .v_stride = factor_stride,
                            .y = out,
                            .y_stride = key_dim_},
                           stream_);
}

absl::Status ChunkByPrimitives::DecayMask(const ChunkView& chunk) {
  return DecayMaskGpu({.size = static_cast<int32_t>(chunk.tokens),
                       .g = chunk.g,
                       .g_stride = chunk.gate_stride,
                       .mask = mask_,
                       .from_start = from_start_,
                       .to_end = to_end_},
                      stream_);
}

absl::Status ChunkByPrimitives::AttentionMatrix(const ChunkView& chunk) {
  const int64_t c = chunk.tokens;
  GDN_RETURN_IF_ERROR(GemmGpu({.layout = GemmLayout::kNT,
                               .m = c,
                               .n = c,
                               .k = key_dim_,
                               .a = chunk.k,
                               .a_stride = chunk.key_stride,
                               .b = chunk.k,
                               .b_stride = chunk.key_stride,
                               .c = attention_,
                               .c_stride = c},
                              stream_));
  GDN_RETURN_IF_ERROR(
      BinaryGpu({.op = BinaryOp::kMul, .count = c * c, .a = attention_, .b = mask_, .y = attention_}, stream_));
  GDN_RETURN_IF_ERROR(VectorMultiplyGpu({.vector = VectorKind::kColumn,
                                         .rows = c,
                                         .cols = c,
                                         .x = attention_,
                                         .x_stride = c,
                                         .v = chunk.beta,
                                         .v_stride = chunk.gate_stride,
                                         .y = attention_,
                                         .y_stride = c},
                                        stream_));
  return CausalMaskGpu({.size = c, .x = attention_, .y = attention_}, stream_);
}

absl::Status ChunkByPrimitives::Inverse(const ChunkView& chunk) {
  return UnitLowerInverseGpu(
      {.batch = 1, .size = static_cast<int32_t>(chunk.tokens), .a = attention_, .inverse = inverse_}, stream_);
}

absl::Status ChunkByPrimitives::Scores(const ChunkView& chunk) {
  const int64_t c = chunk.tokens;
  GDN_RETURN_IF_ERROR(GemmGpu({.layout = GemmLayout::kNT,
                               .m = c,
                               .n = c,
                               .k = key_dim_,
                               .a = chunk.q,
                               .a_stride = chunk.key_stride,
                               .b = chunk.k,
                               .b_stride = chunk.key_stride,
                               .c = scores_,
                               .c_stride = c},
                              stream_));
  return BinaryGpu({.op = BinaryOp::kMul, .count = c * c, .a = scores_, .b = mask_, .y = scores_}, stream_);
}

absl::Status ChunkByPrimitives::Updates(const ChunkView& chunk, const float* state) {
  const int64_t c = chunk.tokens;
  GDN_RETURN_IF_ERROR(VectorMultiplyGpu({.vector = VectorKind::kColumn,
                                         .rows = c,
                                         .cols = value_dim_,
                                         .x = chunk.v,
                                         .x_stride = chunk.value_stride,
                                         .v = chunk.beta,
                                         .v_stride = chunk.gate_stride,
                                         .y = residuals_,
                                         .y_stride = value_dim_},
                                        stream_));
  if (state != nullptr) {
    GDN_RETURN_IF_ERROR(ScaleRows(chunk, chunk.k, from_start_, 1, scaled_rows_));
    GDN_RETURN_IF_ERROR(ScaleRows(chunk, scaled_rows_, chunk.beta, chunk.gate_stride, scaled_rows_));
    GDN_RETURN_IF_ERROR(GemmGpu({.layout = GemmLayout::kNN,
                                 .m = c,
                                 .n = value_dim_,
                                 .k = key_dim_,
                                 .alpha = -1.0f,
                                 .beta = 1.0f,
                                 .a = scaled_rows_,
                                 .a_stride = key_dim_,
                                 .b = state,
                                 .b_stride = value_dim_,
                                 .c = residuals_,
                                 .c_stride = value_dim_},
                                stream_));
  }
  return GemmGpu({.layout = GemmLayout::kNN,
                  .m = c,
                  .n = value_dim_,
                  .k = c,
                  .a = inverse_,
                  .a_stride = c,
                  .b = residuals_,
                  .b_stride = value_dim_,
                  .c = updates_,
                  .c_stride = value_dim_},
                 stream_);
}

absl::Status ChunkByPrimitives::OutputWithState(const ChunkView& chunk, const float* state, float* output) {
  const int64_t c = chunk.tokens;
  if (state != nullptr) {
    GDN_RETURN_IF_ERROR(ScaleRows(chunk, chunk.q, from_start_, 1, scaled_rows_));
    GDN_RETURN_IF_ERROR(GemmGpu({.layout = GemmLayout::kNN,
                                 .m = c,
                                 .n = value_dim_,
                                 .k = key_dim_,
                                 .a = scaled_rows_,
                                 .a_stride = key_dim_,
                                 .b = state,
                                 .b_stride = value_dim_,
                                 .c = output,
                                 .c_stride = chunk.value_stride},
                                stream_));
  }
  return GemmGpu({.layout = GemmLayout::kNN,
                  .m = c,
                  .n = value_dim_,
                  .k = c,
                  .beta = state == nullptr ? 0.0f : 1.0f,
                  .a = scores_,
                  .a_stride = c,
                  .b = updates_,
                  .b_stride = value_dim_,
                  .c = output,
                  .c_stride = chunk.value_stride},
                 stream_);
}

absl::Status ChunkByPrimitives::UpdateState(const ChunkView& chunk, float* state) {
  const int64_t c = chunk.tokens;
  if (c == 0) return absl::OkStatus();
  // One row of K V columns and one factor, e^{G_C}.
  GDN_RETURN_IF_ERROR(VectorMultiplyGpu({.vector = VectorKind::kColumn,
                                         .rows = 1,
                                         .cols = key_dim_ * value_dim_,
                                         .x = state,
                                         .x_stride = key_dim_ * value_dim_,
                                         .v = from_start_ + (c - 1),
                                         .y = state,
                                         .y_stride = key_dim_ * value_dim_},
                                        stream_));
  GDN_RETURN_IF_ERROR(ScaleRows(chunk, chunk.k, to_end_, 1, scaled_rows_));
  return GemmGpu({.layout = GemmLayout::kTN,
                  .m = key_dim_,
                  .n = value_dim_,
                  .k = c,
                  .beta = 1.0f,
                  .a = scaled_rows_,
                  .a_stride = key_dim_,
                  .b = updates_,
                  .b_stride = value_dim_,
                  .c = state,
                  .c_stride = value_dim_},
                 stream_);
}

absl::Status ChunkByPrimitives::Run(const ChunkView& chunk, float* state, float* output) {
  GDN_RETURN_IF_ERROR(DecayMask(chunk));
  GDN_RETURN_IF_ERROR(AttentionMatrix(chunk));
  GDN_RETURN_IF_ERROR(Inverse(chunk));
  GDN_RETURN_IF_ERROR(Scores(chunk));
  GDN_RETURN_IF_ERROR(Updates(chunk, state));
  GDN_RETURN_IF_ERROR(OutputWithState(chunk, state, output));
  return UpdateState(chunk, state);
}

}  // namespace gdn::parity
