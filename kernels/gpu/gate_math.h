// The layer's scalar functions in device code, finite wherever the exact result is. Gating, conv1d, the gated norm and
// their fused forms all use these, so that they agree to the bit.
//
// Thread safety: pure functions.
//
//   const float y = Silu(x);
#pragma once

#include "kernels/gpu/device.h"

namespace gdn::gpu {

inline constexpr float kFloatMax = 3.40282347e38f;

// Returns 1 / (1 + e^-x), computed with exp of -|x|, so that nothing overflows. NaN gives NaN.
__device__ __forceinline__ float Sigmoid(float x) {
  const float e = expf(-fabsf(x));
  const float s = 1.0f / (1.0f + e);
  return x >= 0.0f ? s : e * s;
}

__device__ __forceinline__ float Silu(float x) { return x * Sigmoid(x); }

// Returns log(1 + e^x), or x if that is above 20, where float32 cannot distinguish the two.
__device__ __forceinline__ float Softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// Returns the nearest finite number; NaN stays NaN. Compares, because fminf and fmaxf would return the other operand.
__device__ __forceinline__ float ClampFinite(float x) {
  return x > kFloatMax ? kFloatMax : (x < -kFloatMax ? -kFloatMax : x);
}

// Returns g = -exp(A_log) softplus(a + dt_bias) of a token and value head: finite and <= 0. `a_log` is A_log, or
// -exp(A_log) if `negative_exp`. A NaN in any of them gives NaN.
__device__ __forceinline__ float LogDecay(float a, float a_log, float dt_bias, bool negative_exp) {
  const float rate = negative_exp ? a_log : -ClampFinite(expf(a_log));
  // Clamped before too, because a rate of 0 times an infinite sum would be NaN.
  return ClampFinite(rate * Softplus(ClampFinite(a + dt_bias)));
}

// Returns the bounded g: lower_bound sigmoid(exp(A_log) (a + dt_bias)), in lower_bound .. 0. `a_log` is A_log, or
// -exp(A_log) if `negative_exp`. A NaN gives NaN.
__device__ __forceinline__ float BoundedLogDecay(float a, float a_log, float dt_bias, bool negative_exp,
                                                 float lower_bound) {
  const float rate = negative_exp ? -a_log : ClampFinite(expf(a_log));
  return lower_bound * Sigmoid(rate * ClampFinite(a + dt_bias));
}

}  // namespace gdn::gpu
