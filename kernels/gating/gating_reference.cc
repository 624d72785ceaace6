#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/gating/gating.h"

namespace gdn {
namespace {

constexpr double kFloatMax = std::numeric_limits<float>::max();

double Softplus(double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); }

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

void GatingReference(const GatingParams& params) {
  for (int64_t row = 0; row < params.rows; ++row) {
    for (int32_t head = 0; head < params.value_heads; ++head) {
      const int64_t i = row * params.value_heads + head;
      const double a_log = params.a_log[head];
      const double rate = params.convention == ALogConvention::kRaw ? -std::min(std::exp(a_log), kFloatMax) : a_log;
      const double g = rate * Softplus(double{params.a[i]} + double{params.dt_bias[head]});
      params.g[i] = static_cast<float>(g < -kFloatMax ? -kFloatMax : g);
      params.beta[i] = static_cast<float>(Sigmoid(params.b[i]));
    }
  }
}

}  // namespace gdn
