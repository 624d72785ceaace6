#include "kernels/qk_l2norm/qk_l2norm.h"

#include <cmath>

#include "base/layer_dims.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

void NormalizeHead(const float* x, int32_t dim, bool normalize, double scale, float* y) {
  double factor = scale;
  if (normalize) {
    double sum = 0.0;
    for (int32_t i = 0; i < dim; ++i) sum += double{x[i]} * double{x[i]};
    factor = scale / std::sqrt(sum + double{kL2NormEpsilon});
  }
  for (int32_t i = 0; i < dim; ++i) y[i] = static_cast<float>(factor * double{x[i]});
}

}  // namespace

absl::Status ValidateQkL2Norm(const QkL2NormParams& params) {
  constexpr char kOp[] = "QkL2Norm";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "rows", params.rows, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "key_heads", params.key_heads, 1, kMaxHeads));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "key_dim", params.key_dim, 1, kMaxHeadDim));
  GDN_RETURN_IF_ERROR(RequireFinite(kOp, "scale", params.scale));
  if (params.rows == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "in_stride", params.in_stride, int64_t{params.key_heads} * params.key_dim));
  return RequirePointers(kOp, {{"q", params.q}, {"k", params.k}, {"q_out", params.q_out}, {"k_out", params.k_out}});
}

void QkL2NormReference(const QkL2NormParams& params) {
  const int64_t dense = int64_t{params.key_heads} * params.key_dim;
  for (int64_t row = 0; row < params.rows; ++row) {
    for (int32_t head = 0; head < params.key_heads; ++head) {
      const int64_t in = row * params.in_stride + int64_t{head} * params.key_dim;
      const int64_t out = row * dense + int64_t{head} * params.key_dim;
      NormalizeHead(params.q + in, params.key_dim, params.normalize, params.scale, params.q_out + out);
      NormalizeHead(params.k + in, params.key_dim, params.normalize, 1.0, params.k_out + out);
    }
  }
}

}  // namespace gdn
