#include "kernels/qkvz_split/qkvz_split.h"

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {

absl::Status ValidateQkvzSplit(const QkvzSplitParams& params) {
  constexpr char kOp[] = "QkvzSplit";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "rows", params.rows, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(ValidateLayerDims(params.dims));
  if (params.rows == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "qkvz", params.qkvz));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "ba", params.ba));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "mixed_qkv", params.mixed_qkv));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "z", params.z));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "b", params.b));
  return RequirePointer(kOp, "a", params.a);
}

}  // namespace gdn
