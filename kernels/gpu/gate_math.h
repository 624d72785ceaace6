// The layer's scalar functions in device code, finite wherever the exact result is. Used by gating, conv1d, the gated
// norm and the fused forms of them, so that all agree to the bit.
//
// Thread safety: pure functions.
//
//   const float y = Silu(x);
#pragma once

#include "kernels/gpu/device.h"

namespace gdn::gpu {

inline constexpr float kFloatMax = 3.40282347e38f;

// 1 / (1 + e^-x), with the exponential of a number that is never above 0.
__device__ __forceinline__ float Sigmoid(float x) {
  const float e = expf(-fabsf(x));
  const float s = 1.0f / (1.0f + e);
  return x >= 0.0f ? s : e * s;
}

__device__ __forceinline__ float Silu(float x) { return x * Sigmoid(x); }

// log(1 + e^x); x itself above 20, where float32 knows no difference.
__device__ __forceinline__ float Softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// g of a token and head. `a_log` is A_log, or -exp(A_log) where `negative_exp` says so.
__device__ __forceinline__ float LogDecay(float a, float a_log, float dt_bias, bool negative_exp) {
  const float rate = negative_exp ? a_log : -fminf(expf(a_log), kFloatMax);
  return fmaxf(rate * Softplus(a + dt_bias), -kFloatMax);
}

// The bounded g: lower_bound sigmoid(exp(A_log) (a + dt_bias)). A NaN comes through.
__device__ __forceinline__ float BoundedLogDecay(float a, float a_log, float dt_bias, bool negative_exp,
                                                 float lower_bound) {
  const float rate = negative_exp ? -a_log : fminf(expf(a_log), kFloatMax);
  float x = a + dt_bias;
  x = x > kFloatMax ? kFloatMax
                    : (x < -kFloatMax ? -kFloatMax : x);  // an infinite one times no rate would be no number
  return lower_bound * Sigmoid(rate * x);
}

}  // namespace gdn::gpu
