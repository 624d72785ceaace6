#include "kernels/gating/gating.h"

#include "base/layer_dims.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {

absl::Status ValidateGating(const GatingParams& params) {
  constexpr char kOp[] = "Gating";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "rows", params.rows, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "value_heads", params.value_heads, 1, kMaxHeads));
  if (params.rows == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "a", params.a));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "b", params.b));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "a_log", params.a_log));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "dt_bias", params.dt_bias));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "g", params.g));
  return RequirePointer(kOp, "beta", params.beta);
}

}  // namespace gdn
