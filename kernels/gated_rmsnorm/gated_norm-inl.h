// Device code: the arithmetic of the gated RMSNorm, for its own kernel and for the one that decodes too.
//
// Thread safety: pure functions.
//
//   const float factor = RmsFactor(HeadSum<kWave>(sum), p.value_dim, p.epsilon);
//   y[e] = NormalizeAndGate(p, x[e], factor, p.weight[e], z[e]);
#pragma once

#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
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

// As OutputRowOf.
__device__ __forceinline__ int64_t TiledRow(const GatedRmsNormParams& p, int64_t row) {
  const int heads = p.key_heads * p.group;
  const int head = static_cast<int>(row % heads);
  return row - head + head % p.group * p.key_heads + head / p.group;
}

}  // namespace gdn::gpu
