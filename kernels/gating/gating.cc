#include "kernels/gating/gating.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/layer_dims.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

constexpr double kFloatMax = std::numeric_limits<float>::max();

double Softplus(double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); }

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

absl::Status ValidateGating(const GatingParams& params) {
  constexpr char kOp[] = "Gating";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "rows", params.rows, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "value_heads", params.value_heads, 1, kMaxHeads));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "decay_dim", params.decay_dim, 1, kMaxHeadDim));
  GDN_RETURN_IF_ERROR(RequirePositive(kOp, "beta_scale", params.beta_scale));
  if (params.gate == DecayGate::kBoundedSigmoid) {
    GDN_RETURN_IF_ERROR(RequirePositive(kOp, "-lower_bound", -params.lower_bound));
  }
  if (params.rows == 0) return absl::OkStatus();
  return RequirePointers(kOp, {{"a", params.a},
                               {"b", params.b},
                               {"a_log", params.a_log},
                               {"dt_bias", params.dt_bias},
                               {"g", params.g},
                               {"beta", params.beta}});
}

void GatingReference(const GatingParams& params) {
  for (int64_t row = 0; row < params.rows; ++row) {
    for (int32_t head = 0; head < params.value_heads; ++head) {
      const int64_t i = row * params.value_heads + head;
      const double a_log = params.a_log[head];
      const double rate = params.convention == ALogConvention::kRaw ? -std::min(std::exp(a_log), kFloatMax) : a_log;
      for (int32_t c = 0; c < params.decay_dim; ++c) {
        const int64_t at = i * params.decay_dim + c;
        const double x = double{params.a[at]} + double{params.dt_bias[int64_t{head} * params.decay_dim + c]};
        const double g =
            params.gate == DecayGate::kSoftplus ? rate * Softplus(x) : double{params.lower_bound} * Sigmoid(-rate * x);
        params.g[at] = static_cast<float>(g < -kFloatMax ? -kFloatMax : g);
      }
      params.beta[i] = static_cast<float>(double{params.beta_scale} * Sigmoid(params.b[i]));
    }
  }
}

}  // namespace gdn
