#include <cmath>

#include "kernels/primitives/l2norm/l2norm.h"

namespace gdn {
namespace {

double Dot(const float* a, const float* b, int64_t width) {
  double sum = 0.0;
  for (int64_t i = 0; i < width; ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

}  // namespace

void L2NormReference(const L2NormParams& params) {
  for (int64_t row = 0; row < params.rows; ++row) {
    const float* x = params.x + row * params.width;
    const double r = 1.0 / std::sqrt(Dot(x, x, params.width) + params.epsilon);
    for (int64_t i = 0; i < params.width; ++i) params.y[row * params.width + i] = static_cast<float>(x[i] * r);
  }
}

void L2NormBackwardReference(const L2NormBackwardParams& params) {
  for (int64_t row = 0; row < params.rows; ++row) {
    const float* x = params.x + row * params.width;
    const float* dy = params.dy + row * params.width;
    const double r = 1.0 / std::sqrt(Dot(x, x, params.width) + params.epsilon);
    const double along = r * r * r * Dot(x, dy, params.width);
    for (int64_t i = 0; i < params.width; ++i) {
      params.dx[row * params.width + i] = static_cast<float>(r * dy[i] - along * x[i]);
    }
  }
}

}  // namespace gdn
