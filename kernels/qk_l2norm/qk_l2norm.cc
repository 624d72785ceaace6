#include "kernels/qk_l2norm/qk_l2norm.h"

#include <cmath>

#include "base/layer_dims.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {

absl::Status ValidateQkL2Norm(const QkL2NormParams& params) {
  constexpr char kOp[] = "QkL2Norm";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "rows", params.rows, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "key_heads", params.key_heads, 1, kMaxHeads));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "key_dim", params.key_dim, 1, kMaxHeadDim));
  if (!std::isfinite(params.scale)) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                     absl::StrCat(kOp, ": scale is ", params.scale, "; expected a finite number"),
                     {{"field", "scale"}});
  }
  if (params.rows == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "in_stride", params.in_stride, int64_t{params.key_heads} * params.key_dim));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "q", params.q));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "k", params.k));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "q_out", params.q_out));
  return RequirePointer(kOp, "k_out", params.k_out);
}

}  // namespace gdn
