// The two gates of a token and value head.
//
//   g    = -exp(A_log) * softplus(a + dt_bias)     log decay, <= 0     softplus(x) = x for x > 20, else log1p(exp x)
//   beta = beta_scale * sigmoid(b)                 write strength, in (0, beta_scale)
// kBoundedSigmoid, where a lower bound L < 0 is given, has another decay:  g = L sigmoid(exp(A_log) (a + dt_bias)).
// Where decay_dim is K (a decay by key channel), a, dt_bias and g have K values a head, which share the head's A_log.
// kNegativeExp takes ssm_a = -exp(A_log), as GGUF stores it, in A_log's place. Finite for every finite input.
// Thread safety: any number of calls at a time.
//
//   GDN_RETURN_IF_ERROR(backend.Gating({.value_heads = hv, .rows = n, .a = a, .b = b, .a_log = al, ...}));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/layer_spec.h"
#include "base/thread_pool.h"
#include "kernels/gpu/stream.h"

namespace gdn {

struct GatingParams {
  ALogConvention convention = ALogConvention::kRaw;
  DecayGate gate = DecayGate::kSoftplus;
  float lower_bound = 0.0f;  // L, of kBoundedSigmoid
  float beta_scale = 1.0f;
  int32_t value_heads = 0;
  int32_t decay_dim = 1;  // 1 or K
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
