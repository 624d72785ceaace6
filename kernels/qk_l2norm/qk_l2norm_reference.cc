#include <cmath>

#include "kernels/qk_l2norm/qk_l2norm.h"

namespace gdn {
namespace {

void NormalizeHead(const float* x, int32_t dim, bool normalize, double scale, float* y) {
  double factor = scale;
  if (normalize) {
    double sum = 0.0;
    for (int32_t i = 0; i < dim; ++i) sum += double{x[i]} * double{x[i]};
    factor = scale / std::sqrt(sum + double{kL2NormEpsilon});
  }
  for (int32_t i = 0; i < dim; ++i) y[i] = static_cast<float>(factor * double{x[i]});
}

}  // namespace

void QkL2NormReference(const QkL2NormParams& params) {
  const int64_t dense = int64_t{params.key_heads} * params.key_dim;
  for (int64_t row = 0; row < params.rows; ++row) {
    for (int32_t head = 0; head < params.key_heads; ++head) {
      const int64_t in = row * params.in_stride + int64_t{head} * params.key_dim;
      const int64_t out = row * dense + int64_t{head} * params.key_dim;
      NormalizeHead(params.q + in, params.key_dim, params.normalize, params.scale, params.q_out + out);
      NormalizeHead(params.k + in, params.key_dim, params.normalize, 1.0, params.k_out + out);
    }
  }
}

}  // namespace gdn
