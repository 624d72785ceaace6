// Per-head gated RMSNorm of the delta rule's output.
//
//   y = w * x * rsqrt(mean x^2 + eps) * gate(z)   norm before gate, w as given (not 1 + w), mean over a head's V
// gate is silu or sigmoid. y's heads may be written in tiled order, for quantised out-projections that have their
// columns so and blocks that span two heads.
// Thread safety: any number of calls at a time. y may alias x unless it is tiled.
//
//   GDN_RETURN_IF_ERROR(backend.GatedRmsNorm({.value_dim = v, .rows = n * hv, .x = o, .z = z, .weight = w, .y = y}));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/layer_spec.h"
#include "base/threads/thread_pool.h"
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
  // [3, rows, V]: y as three bfloat16 terms, which a GPU writes in place of y. Only for a projection that takes them
  // (Backend::TakesTerms, ProjectionParams::x_terms); else null.
  uint16_t* terms = nullptr;
  // y is written in tiled order if both exceed 1: of a token's key_heads * group rows, row i group + j goes to row j
  // key_heads + i. x and z keep their order. If tiled, `rows` must be a multiple of key_heads * group.
  int32_t key_heads = 1;
  int32_t group = 1;

  bool tiled() const { return key_heads > 1 && group > 1; }
};

// Returns the row of y that input row `row` is written to in tiled order; `row` itself if key_heads or group is 1.
constexpr int64_t OutputRowOf(int64_t row, int32_t key_heads, int32_t group) {
  const int64_t head = row % (int64_t{key_heads} * group);
  return row - head + head % group * key_heads + head / group;
}

absl::Status ValidateGatedRmsNorm(const GatedRmsNormParams& params);
// INVALID_ARGUMENT if the params have terms; for implementations that write none.
absl::Status RefuseTerms(const GatedRmsNormParams& params);
void GatedRmsNormReference(const GatedRmsNormParams& params);
absl::Status GatedRmsNormCpu(const GatedRmsNormParams& params, ThreadPool& pool);
absl::Status GatedRmsNormGpu(const GatedRmsNormParams& params, const gpu::Stream& stream);

}  // namespace gdn
