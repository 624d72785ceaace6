#include "kernels/projection/projection.h"

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

double ElementAt(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[index];
    case DType::kF16:
      return F16ToFloat(static_cast<const uint16_t*>(data)[index]);
    case DType::kBF16:
      return BF16ToFloat(static_cast<const uint16_t*>(data)[index]);
  }
  return 0.0;
}

}  // namespace

absl::Status ValidateProjection(const ProjectionParams& params) {
  constexpr char kOp[] = "Projection";
  constexpr int64_t kMaxFeatures = int64_t{1} << 31;
  const WeightMatrix& weight = params.weight;
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "rows", params.rows, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "weight.rows", weight.rows, 0, kMaxFeatures));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "weight.cols", weight.cols, 1, kMaxFeatures));
  if (params.rows == 0 || weight.rows == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointers(kOp, {{"x", params.x.data}, {"weight.data", weight.data}, {"y", params.y.data}}));
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "x_stride", params.x_stride, weight.cols));
  return RequireAtLeast(kOp, "y_stride", params.y_stride, weight.rows);
}

void ProjectionReference(const ProjectionParams& params) {
  const WeightMatrix& weight = params.weight;
  for (int64_t row = 0; row < params.rows; ++row) {
    for (int64_t output = 0; output < weight.rows; ++output) {
      double sum = 0.0;
      for (int64_t i = 0; i < weight.cols; ++i) {
        sum += ElementAt(params.x.data, params.x.dtype, row * params.x_stride + i) *
               ElementAt(weight.data, weight.dtype, output * weight.cols + i);
      }
      const float rounded = static_cast<float>(sum);
      ConvertFromFloat(&rounded, 1, params.y.dtype, params.y.From(row * params.y_stride + output).data);
    }
  }
}

}  // namespace gdn
