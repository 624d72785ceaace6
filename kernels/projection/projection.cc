#include "kernels/projection/projection.h"

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {

absl::Status ValidateProjection(const ProjectionParams& params) {
  constexpr char kOp[] = "Projection";
  constexpr int64_t kMaxFeatures = int64_t{1} << 31;
  const WeightMatrix& weight = params.weight;
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "rows", params.rows, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "weight.rows", weight.rows, 0, kMaxFeatures));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "weight.cols", weight.cols, 1, kMaxFeatures));
  if (params.rows == 0 || weight.rows == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "x", params.x));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "weight.data", weight.data));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "y", params.y));
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "x_stride", params.x_stride, weight.cols));
  return RequireAtLeast(kOp, "y_stride", params.y_stride, weight.rows);
}

}  // namespace gdn
