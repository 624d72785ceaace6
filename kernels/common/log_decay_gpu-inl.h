// ClampLogDecay (log_decay.h) in device code, and the decay of one token.
//
// Thread safety: pure functions. For *_gpu.hip files only.
//
//   sum += static_cast<double>(ClampLogDecay(g));
//   s *= TokenDecay(g);
#pragma once

#include "kernels/common/log_decay.h"
#include "kernels/gpu/device.h"

namespace gdn::gpu {

// Returns `g`, or kLowestLogDecay if `g` is lower. Compares, because fmaxf would return the bound for a NaN.
__device__ __forceinline__ float ClampLogDecay(float g) { return g < kLowestLogDecay ? kLowestLogDecay : g; }

// Returns e^g for the log decay g <= 0 of one token. The scan multiplies the state by thousands of these, so an error
// of constant sign accumulates: an expf that is 1.4e-8 low near 1 cost 6e-5 over 4,096 tokens. Near 0 a polynomial
// leaves one rounding.
__device__ __forceinline__ float TokenDecay(float g) {
  const float slope = fmaf(g, fmaf(g, fmaf(g, 1.0f / 24.0f, 1.0f / 6.0f), 0.5f), 1.0f);  // (e^g - 1) / g
  return g > -1.0f / 32.0f ? fmaf(g, slope, 1.0f) : expf(g);
}

}  // namespace gdn::gpu
