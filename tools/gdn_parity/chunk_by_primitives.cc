#include "tools/gdn_parity/chunk_by_primitives.h"

#include "base/status_macros.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/primitives/decay_mask/decay_mask.h"
#include "kernels/primitives/elementwise/elementwise.h"
#include "kernels/primitives/gemm/gemm.h"
#include "kernels/primitives/masks/masks.h"
#include "kernels/primitives/triangular_solve/triangular_solve.h"

namespace gdn::parity {
namespace {

// `stride` floats from one row to the next, or from one factor to the next.
struct Rows {
  const float* data;
  int64_t stride;
};
struct OutRows {
  float* data;
  int64_t stride;
};

struct Extents {
  int64_t m, n, k;
};

// c = alpha op(a) op(b) + beta c
absl::Status Product(GemmLayout layout, const Extents& e, Rows a, Rows b, OutRows c, const gpu::Stream& stream,
                     float alpha = 1.0f, float beta = 0.0f) {
  return GemmGpu({.layout = layout,
                  .m = e.m,
                  .n = e.n,
                  .k = e.k,
                  .alpha = alpha,
                  .beta = beta,
                  .a = a.data,
                  .a_stride = a.stride,
                  .b = b.data,
                  .b_stride = b.stride,
                  .c = c.data,
                  .c_stride = c.stride},
                 stream);
}

// Each of the rows times a factor of its own.
absl::Status ScaleRows(int64_t rows, int64_t cols, Rows x, Rows factors, OutRows y, const gpu::Stream& stream) {
  return VectorMultiplyGpu({.vector = VectorKind::kColumn,
                            .rows = rows,
                            .cols = cols,
                            .x = x.data,
                            .x_stride = x.stride,
                            .v = factors.data,
                            .v_stride = factors.stride,
                            .y = y.data,
                            .y_stride = y.stride},
                           stream);
}

}  // namespace

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
  const Rows k{chunk.k, chunk.key_stride};
  GDN_RETURN_IF_ERROR(Product(GemmLayout::kNT, {c, c, key_dim_}, k, k, {attention_, c}, stream_));
  GDN_RETURN_IF_ERROR(
      BinaryGpu({.op = BinaryOp::kMul, .count = c * c, .a = attention_, .b = mask_, .y = attention_}, stream_));
  GDN_RETURN_IF_ERROR(ScaleRows(c, c, {attention_, c}, {chunk.beta, chunk.gate_stride}, {attention_, c}, stream_));
  return CausalMaskGpu({.size = c, .x = attention_, .y = attention_}, stream_);
}

absl::Status ChunkByPrimitives::Inverse(const ChunkView& chunk) {
  return UnitLowerInverseGpu(
      {.batch = 1, .size = static_cast<int32_t>(chunk.tokens), .a = attention_, .inverse = inverse_}, stream_);
}

absl::Status ChunkByPrimitives::Scores(const ChunkView& chunk) {
  const int64_t c = chunk.tokens;
  GDN_RETURN_IF_ERROR(Product(GemmLayout::kNT, {c, c, key_dim_}, {chunk.q, chunk.key_stride},
                              {chunk.k, chunk.key_stride}, {scores_, c}, stream_));
  return BinaryGpu({.op = BinaryOp::kMul, .count = c * c, .a = scores_, .b = mask_, .y = scores_}, stream_);
}

absl::Status ChunkByPrimitives::Updates(const ChunkView& chunk, const float* state) {
  const int64_t c = chunk.tokens;
  const Rows beta{chunk.beta, chunk.gate_stride};
  GDN_RETURN_IF_ERROR(ScaleRows(c, value_dim_, {chunk.v, chunk.value_stride}, beta, {residuals_, value_dim_}, stream_));
  if (state != nullptr) {
    const OutRows scaled{scaled_rows_, key_dim_};
    GDN_RETURN_IF_ERROR(ScaleRows(c, key_dim_, {chunk.k, chunk.key_stride}, {from_start_, 1}, scaled, stream_));
    GDN_RETURN_IF_ERROR(ScaleRows(c, key_dim_, {scaled_rows_, key_dim_}, beta, scaled, stream_));
    GDN_RETURN_IF_ERROR(Product(GemmLayout::kNN, {c, value_dim_, key_dim_}, {scaled_rows_, key_dim_},
                                {state, value_dim_}, {residuals_, value_dim_}, stream_, /*alpha=*/-1.0f,
                                /*beta=*/1.0f));
  }
  return Product(GemmLayout::kNN, {c, value_dim_, c}, {inverse_, c}, {residuals_, value_dim_}, {updates_, value_dim_},
                 stream_);
}

absl::Status ChunkByPrimitives::OutputWithState(const ChunkView& chunk, const float* state, float* output) {
  const int64_t c = chunk.tokens;
  const OutRows out{output, chunk.value_stride};
  if (state != nullptr) {
    GDN_RETURN_IF_ERROR(
        ScaleRows(c, key_dim_, {chunk.q, chunk.key_stride}, {from_start_, 1}, {scaled_rows_, key_dim_}, stream_));
    GDN_RETURN_IF_ERROR(Product(GemmLayout::kNN, {c, value_dim_, key_dim_}, {scaled_rows_, key_dim_},
                                {state, value_dim_}, out, stream_));
  }
  return Product(GemmLayout::kNN, {c, value_dim_, c}, {scores_, c}, {updates_, value_dim_}, out, stream_,
                 /*alpha=*/1.0f, /*beta=*/state == nullptr ? 0.0f : 1.0f);
}

absl::Status ChunkByPrimitives::UpdateState(const ChunkView& chunk, float* state) {
  const int64_t c = chunk.tokens;
  if (c == 0) return absl::OkStatus();
  // One row of K V columns and one factor, e^{G_C}.
  const int64_t size = key_dim_ * value_dim_;
  GDN_RETURN_IF_ERROR(ScaleRows(1, size, {state, size}, {from_start_ + (c - 1), 1}, {state, size}, stream_));
  GDN_RETURN_IF_ERROR(
      ScaleRows(c, key_dim_, {chunk.k, chunk.key_stride}, {to_end_, 1}, {scaled_rows_, key_dim_}, stream_));
  return Product(GemmLayout::kTN, {key_dim_, value_dim_, c}, {scaled_rows_, key_dim_}, {updates_, value_dim_},
                 {state, value_dim_}, stream_, /*alpha=*/1.0f, /*beta=*/1.0f);
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
