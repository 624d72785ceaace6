#include "kernels/primitives/decay_mask/decay_mask.h"

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {

absl::Status ValidateDecayMask(const DecayMaskParams& params) {
  constexpr char kOp[] = "DecayMask";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "batch", params.batch, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "size", params.size, 0, kMaxDecayMaskSize));
  if (params.batch == 0 || params.size == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "g_stride", params.g_stride, 1));
  if (params.batch > 1) GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "g_batch_stride", params.g_batch_stride, 1));
  return RequirePointer(kOp, "g", params.g);
}

}  // namespace gdn
