// Device code: the arithmetic of the gated RMSNorm, for its own kernel and for the one that decodes too.
//
// Thread safety: pure functions.
//
//   const float factor = RmsFactor(HeadSum<kWave>(sum), p.value_dim, p.epsilon);
//   y[e] = NormalizeAndGate(p, x[e], factor, p.weight[e], z[e]);
#pragma once

#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/gpu/bf16_terms.h"
#include "kernels/gpu/gate_math.h"

namespace gdn::gpu {

__device__ __forceinline__ float RmsFactor(double sum, int dim, float epsilon) {
  return static_cast<float>(1.0 / sqrt(sum / dim + static_cast<double>(epsilon)));
}

// The branch is the launch's: one instruction an element beside the exponential and the division of either way.
__device__ __forceinline__ float NormalizeAndGate(const GatedRmsNormParams& p, float x, float factor, float weight,
                                                  float z) {
  const float sigmoid = Sigmoid(z);
  return x * factor * weight * (p.gate == GateActivation::kSilu ? z * sigmoid : sigmoid);
}

// Stores outputs at `to`, an address within p.y, or their terms in its place. Only waves of 32 have units for those.
template <int kWave>
__device__ __forceinline__ void StoreNormed(const GatedRmsNormParams& p, float* to, const Vec4& y) {
  if constexpr (kWave == 32) {
    if (p.terms != nullptr) return StoreTerms4(p.terms + (to - p.y), p.rows * p.value_dim, y);
  }
  Store4(to, y);
}
template <int kWave>
__device__ __forceinline__ void StoreNormed(const GatedRmsNormParams& p, float* to, float y) {
  if constexpr (kWave == 32) {
    if (p.terms != nullptr) {
      const Terms of_y = TermsOfValue(y);
#pragma unroll
      for (int term = 0; term < kMostTerms; ++term) {
        p.terms[to - p.y + term * p.rows * p.value_dim] = static_cast<uint16_t>(of_y.bits[term]);
      }
      return;
    }
  }
  *to = y;
}

// As OutputRowOf. Rows are fewer than 2^31 (kMaxOperatorRows), and a division of 64 bits takes longer than the norm.
__device__ __forceinline__ int64_t TiledRow(const GatedRmsNormParams& p, int64_t row) {
  const auto group = static_cast<uint32_t>(p.group);
  const uint32_t head = static_cast<uint32_t>(row) % (static_cast<uint32_t>(p.key_heads) * group);
  const uint32_t key_head = head / group;
  return row - head + (head - key_head * group) * static_cast<uint32_t>(p.key_heads) + key_head;
}

}  // namespace gdn::gpu
