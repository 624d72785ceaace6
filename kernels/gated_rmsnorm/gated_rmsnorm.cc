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
  if (!std::isfinite(params.epsilon) || params.epsilon <= 0.0f) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                     absl::StrCat(kOp, ": epsilon is ", params.epsilon, "; expected a positive finite number"),
                     {{"field", "epsilon"}});
  }
  if (params.rows == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "x", params.x));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "z", params.z));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "weight", params.weight));
  return RequirePointer(kOp, "y", params.y);
}

}  // namespace gdn
