// Computes the two gates of each token and value head: log decay and write strength.
//
//   g    = -exp(A_log) * softplus(a + dt_bias)     log decay, <= 0     softplus(x) = x for x > 20, else log1p(exp x)
//   beta = beta_scale * sigmoid(b)                 write strength, in (0, beta_scale)
// kBoundedSigmoid, with a lower bound L < 0, has another decay:  g = L sigmoid(exp(A_log) (a + dt_bias)). If decay_dim
// is K (decays by key channel), a, dt_bias and g have K values per head, which share the head's A_log. With
// kNegativeExp, a_log holds -exp(A_log), as GGUF stores it (ssm_a). Finite for every finite input.
// Thread safety: any number of calls at a time.
//
//   GDN_RETURN_IF_ERROR(backend.Gating({.value_heads = hv, .rows = n, .a = a, .b = b, .a_log = al, ...}));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/layer_spec.h"
#include "base/threads/thread_pool.h"
#include "kernels/gpu/stream.h"

namespace gdn {

struct GatingParams {
  ALogConvention convention = ALogConvention::kRaw;
  DecayGate gate = DecayGate::kSoftplus;
  float lower_bound = 0.0f;  // L for kBoundedSigmoid, finite and below 0; unused otherwise
  float beta_scale = 1.0f;
  int32_t value_heads = 0;
  int32_t decay_dim = 1;  // 1: a decay for each head; K: one for each key channel
  int64_t rows = 0;
  const float* a = nullptr;        // [rows, HV, decay_dim]
  const float* b = nullptr;        // [rows, HV]
  const float* a_log = nullptr;    // [HV]
  const float* dt_bias = nullptr;  // [HV, decay_dim]
  float* g = nullptr;              // [rows, HV, decay_dim]
  float* beta = nullptr;           // [rows, HV]
};

absl::Status ValidateGating(const GatingParams& params);
void GatingReference(const GatingParams& params);
absl::Status GatingCpu(const GatingParams& params, ThreadPool& pool);
absl::Status GatingGpu(const GatingParams& params, const gpu::Stream& stream);

}  // namespace gdn
