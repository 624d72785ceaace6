// Per-head gated RMSNorm of the delta rule's output.
//
//   y = w * x * rsqrt(mean x^2 + eps) * gate(z)   norm before gate, w as given (not 1 + w), mean over a head's V
// gate is silu or sigmoid.
// Thread safety: any number of calls at a time. y may alias x.
//
//   GDN_RETURN_IF_ERROR(backend.GatedRmsNorm({.value_dim = v, .rows = n * hv, .x = o, .z = z, .weight = w, .y = y}));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/layer_spec.h"
#include "base/thread_pool.h"
#include "kernels/gpu/stream.h"

namespace gdn {

struct GatedRmsNormParams {
  GateActivation gate = GateActivation::kSilu;
  int32_t value_dim = 0;
  int64_t rows = 0;  // tokens * HV
  float epsilon = 1e-6f;
  const float* x = nullptr;       // [rows, V]
  const float* z = nullptr;       // [rows, V]
  const float* weight = nullptr;  // [V]
  float* y = nullptr;             // [rows, V]
};

absl::Status ValidateGatedRmsNorm(const GatedRmsNormParams& params);
void GatedRmsNormReference(const GatedRmsNormParams& params);
absl::Status GatedRmsNormCpu(const GatedRmsNormParams& params, ThreadPool& pool);
absl::Status GatedRmsNormGpu(const GatedRmsNormParams& params, const gpu::Stream& stream);

}  // namespace gdn
