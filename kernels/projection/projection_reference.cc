#include "kernels/projection/projection.h"

namespace gdn {
namespace {

double WeightAt(const WeightMatrix& weight, int64_t index) {
  switch (weight.dtype) {
    case DType::kF32:
      return static_cast<const float*>(weight.data)[index];
    case DType::kF16:
      return F16ToFloat(static_cast<const uint16_t*>(weight.data)[index]);
    case DType::kBF16:
      return BF16ToFloat(static_cast<const uint16_t*>(weight.data)[index]);
  }
  return 0.0;
}

}  // namespace

void ProjectionReference(const ProjectionParams& params) {
  const WeightMatrix& weight = params.weight;
  for (int64_t row = 0; row < params.rows; ++row) {
    const float* x = params.x + row * params.x_stride;
    for (int64_t output = 0; output < weight.rows; ++output) {
      double sum = 0.0;
      for (int64_t i = 0; i < weight.cols; ++i) sum += double{x[i]} * WeightAt(weight, output * weight.cols + i);
      params.y[row * params.y_stride + output] = static_cast<float>(sum);
    }
  }
}

}  // namespace gdn
