#include "kernels/primitives/transpose/transpose.h"

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {

absl::Status ValidateTranspose(const TransposeParams& params) {
  constexpr char kOp[] = "Transpose";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "batch", params.batch, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "rows", params.rows, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "cols", params.cols, 0, kMaxOperatorRows));
  if (params.batch == 0 || params.rows == 0 || params.cols == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "x", params.x));
  return RequirePointer(kOp, "y", params.y);
}

}  // namespace gdn
