#include <cmath>
#include <limits>
#include <vector>

#include "base/status_macros.h"
#include "kernels/common/parallel.h"
#include "kernels/gating/channel_gating_cpu.h"
#include "kernels/gating/gating.h"

namespace gdn {
namespace {

constexpr float kFloatMax = std::numeric_limits<float>::max();
constexpr int64_t kRowsPerTask = 16;
constexpr int64_t kWorkPerElement = 64;  // three scalar transcendental functions against one SIMD lane
constexpr int64_t kWorkPerChannel = 6;   // two in vectors

// exp overflows above 88 in float32, long after softplus has become the identity.
float Softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Written so that a NaN comes through.
float ClampFinite(float x) { return x > kFloatMax ? kFloatMax : (x < -kFloatMax ? -kFloatMax : x); }

}  // namespace

absl::Status GatingCpu(const GatingParams& params, ThreadPool& pool) {
  GDN_RETURN_IF_ERROR(ValidateGating(params));
  if (params.rows == 0) return absl::OkStatus();
  const int32_t heads = params.value_heads;
  // d g / d softplus of each head. Clamped, so that an infinite rate never meets a softplus of zero.
  std::vector<float> rates(params.a_log, params.a_log + heads);
  if (params.convention == ALogConvention::kRaw) {
    for (float& rate : rates) rate = ClampFinite(-std::exp(rate));
  }

  const bool in_vectors = params.decay_dim > 1 || params.gate != DecayGate::kSoftplus;
  const int64_t work =
      params.rows * heads * (kWorkPerElement + (in_vectors ? params.decay_dim * kWorkPerChannel : int64_t{0}));
  ParallelForRows(pool, work, params.rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (in_vectors) ChannelLogDecays(params, rates.data(), row);
      for (int32_t head = 0; head < heads; ++head) {
        const int64_t i = row * heads + head;
        if (!in_vectors) {
          const float softplus = Softplus(ClampFinite(params.a[i] + params.dt_bias[head]));
          params.g[i] = ClampFinite(rates[head] * softplus);
        }
        params.beta[i] = params.beta_scale * Sigmoid(params.b[i]);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace gdn
