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
  operator Rows() const { return {data, stride}; }  // NOLINT(google-explicit-constructor): what is made is then read
};

struct Extents {
  int64_t m, n, k;
};

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

absl::Status ChunkByPrimitives::Run(const ChunkView& chunk, float* state, float* output) {
  const int64_t c = chunk.tokens;
  // to = alpha op(a) op(b) + beta to
  const auto product = [this](GemmLayout layout, const Extents& e, Rows a, Rows b, OutRows to, float alpha = 1.0f,
                              float beta = 0.0f) {
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
                    .c = to.data,
                    .c_stride = to.stride},
                   stream_);
  };
  // Each of the rows times a factor of its own.
  const auto scale_rows = [this](int64_t rows, int64_t cols, Rows x, Rows factors, OutRows y) {
    return VectorMultiplyGpu({.vector = VectorKind::kColumn,
                              .rows = rows,
                              .cols = cols,
                              .x = x.data,
                              .x_stride = x.stride,
                              .v = factors.data,
                              .v_stride = factors.stride,
                              .y = y.data,
                              .y_stride = y.stride},
                             stream_);
  };
  const auto apply_mask = [&](float* x) {
    return BinaryGpu({.op = BinaryOp::kMul, .count = c * c, .a = x, .b = mask_, .y = x}, stream_);
  };
  const Rows q{chunk.q, chunk.key_stride};
  const Rows k{chunk.k, chunk.key_stride};
  const Rows beta{chunk.beta, chunk.gate_stride};
  const OutRows scaled{scaled_rows_, key_dim_};
  const OutRows residuals{residuals_, value_dim_};
  const OutRows updates{updates_, value_dim_};
  const OutRows out{output, chunk.value_stride};

  GDN_RETURN_IF_ERROR(DecayMaskGpu({.size = static_cast<int32_t>(c),
                                    .g = chunk.g,
                                    .g_stride = chunk.gate_stride,
                                    .mask = mask_,
                                    .from_start = from_start_,
                                    .to_end = to_end_},
                                   stream_));
  // A and T
  GDN_RETURN_IF_ERROR(product(GemmLayout::kNT, {c, c, key_dim_}, k, k, {attention_, c}));
  GDN_RETURN_IF_ERROR(apply_mask(attention_));
  GDN_RETURN_IF_ERROR(scale_rows(c, c, {attention_, c}, beta, {attention_, c}));
  GDN_RETURN_IF_ERROR(TrilGpu({.rows = c, .cols = c, .diagonal = -1, .x = attention_, .y = attention_}, stream_));
  GDN_RETURN_IF_ERROR(UnitLowerInverseGpu(
      {.batch = 1, .size = static_cast<int32_t>(c), .a = attention_, .inverse = inverse_}, stream_));
  // P
  GDN_RETURN_IF_ERROR(product(GemmLayout::kNT, {c, c, key_dim_}, q, k, {scores_, c}));
  GDN_RETURN_IF_ERROR(apply_mask(scores_));
  // U
  GDN_RETURN_IF_ERROR(scale_rows(c, value_dim_, {chunk.v, chunk.value_stride}, beta, residuals));
  if (state != nullptr) {
    GDN_RETURN_IF_ERROR(scale_rows(c, key_dim_, k, {from_start_, 1}, scaled));
    GDN_RETURN_IF_ERROR(scale_rows(c, key_dim_, scaled, beta, scaled));
    GDN_RETURN_IF_ERROR(product(GemmLayout::kNN, {c, value_dim_, key_dim_}, scaled, {state, value_dim_}, residuals,
                                /*alpha=*/-1.0f, /*beta=*/1.0f));
  }
  GDN_RETURN_IF_ERROR(product(GemmLayout::kNN, {c, value_dim_, c}, {inverse_, c}, residuals, updates));
  // O
  if (state != nullptr) {
    GDN_RETURN_IF_ERROR(scale_rows(c, key_dim_, q, {from_start_, 1}, scaled));
    GDN_RETURN_IF_ERROR(product(GemmLayout::kNN, {c, value_dim_, key_dim_}, scaled, {state, value_dim_}, out));
  }
  GDN_RETURN_IF_ERROR(product(GemmLayout::kNN, {c, value_dim_, c}, {scores_, c}, updates, out, /*alpha=*/1.0f,
                              /*beta=*/state == nullptr ? 0.0f : 1.0f));
  // S: one row of K V columns and one factor, e^{G_C}; then what the chunk's tokens write.
  if (state == nullptr || c == 0) return absl::OkStatus();
  const int64_t size = key_dim_ * value_dim_;
  GDN_RETURN_IF_ERROR(scale_rows(1, size, {state, size}, {from_start_ + (c - 1), 1}, {state, size}));
  GDN_RETURN_IF_ERROR(scale_rows(c, key_dim_, k, {to_end_, 1}, scaled));
  return product(GemmLayout::kTN, {key_dim_, value_dim_, c}, scaled, updates, {state, value_dim_}, /*alpha=*/1.0f,
                 /*beta=*/1.0f);
}

}  // namespace gdn::parity
