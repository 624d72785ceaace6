#include "kernels/gated_rmsnorm/gated_rmsnorm.h"

#include <cmath>

#include "base/layer_dims.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {

absl::Status ValidateGatedRmsNorm(const GatedRmsNormParams& params) {
  constexpr char kOp[] = "GatedRmsNorm";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "rows", params.rows, 0, kMaxOperatorRows * kMaxHeads));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "value_dim", params.value_dim, 1, kMaxHeadDim));
  GDN_RETURN_IF_ERROR(RequirePositive(kOp, "epsilon", params.epsilon));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "key_heads", params.key_heads, 1, kMaxHeads));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "group", params.group, 1, kMaxHeads));
  if (params.rows == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(
      RequirePointers(kOp, {{"x", params.x}, {"z", params.z}, {"weight", params.weight}, {"y", params.y}}));
  if (!params.tiled()) return absl::OkStatus();
  if (params.rows % (int64_t{params.key_heads} * params.group) != 0) {
    return InvalidField(kOp, "rows", "rows is ", params.rows, "; expected a multiple of the ", params.key_heads, " x ",
                        params.group, " heads that y is tiled by");
  }
  if (params.x == params.y) {
    return InvalidField(kOp, "y", "y is x; expected another place, as its heads are put into another order");
  }
  return absl::OkStatus();
}

absl::Status RefuseTerms(const GatedRmsNormParams& params) {
  if (params.terms == nullptr) return absl::OkStatus();
  return InvalidField("GatedRmsNorm", "terms",
                      "terms is given; expected null, because only devices with matrix units write terms "
                      "(Backend::TakesTerms)");
}

void GatedRmsNormReference(const GatedRmsNormParams& params) {
  const int32_t dim = params.value_dim;
  for (int64_t row = 0; row < params.rows; ++row) {
    const float* x = params.x + row * dim;
    const float* z = params.z + row * dim;
    float* y = params.y + OutputRowOf(row, params.key_heads, params.group) * dim;
    double sum = 0.0;
    for (int32_t i = 0; i < dim; ++i) sum += double{x[i]} * double{x[i]};
    const double factor = 1.0 / std::sqrt(sum / dim + double{params.epsilon});
    for (int32_t i = 0; i < dim; ++i) {
      const double sigmoid = 1.0 / (1.0 + std::exp(-double{z[i]}));
      const double gate = params.gate == GateActivation::kSilu ? double{z[i]} * sigmoid : sigmoid;
      y[i] = static_cast<float>(double{params.weight[i]} * double{x[i]} * factor * gate);
    }
  }
}

}  // namespace gdn
