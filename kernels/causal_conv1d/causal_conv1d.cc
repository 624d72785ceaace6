#include "kernels/causal_conv1d/causal_conv1d.h"

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {

absl::Status ValidateCausalConv1d(const CausalConv1dParams& params) {
  constexpr char kOp[] = "CausalConv1d";
  GDN_RETURN_IF_ERROR(ValidatePackedBatch(params.batch, params.pool.slot_count));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "conv_width", params.pool.layout.dims().conv_width, 2, kMaxConvWidth));
  if (params.batch.tokens() == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "pool.data", params.pool.data));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "token_counts", params.token_counts));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "x", params.x));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "weight", params.weight));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "y", params.y));
  for (int32_t i = 0; i < params.batch.sequences; ++i) {
    if (params.batch.slots[i] < 0) continue;
    GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, absl::StrCat("token_counts[", i, "]"), params.token_counts[i], 0));
  }
  return absl::OkStatus();
}

}  // namespace gdn
