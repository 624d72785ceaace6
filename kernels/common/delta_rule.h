// Parameters of every form of the delta rule: per-token tensors, the batch of sequences and the states they advance.
//
// Per value head, with S [K, V] float32 (source: Yang et al., "Gated Delta Networks", arXiv:2412.06464, eq. 10):
//   S <- exp(g) S;  u = beta (v - S^T k);  S <- S + k u^T;  o = S^T q
// If the dims decay by channel (KDA: Kimi Team, "Kimi Linear", arXiv:2510.26692, eq. 1), S <- diag(exp(g)) S with g
// [K]. q arrives scaled; neither q nor k is normalised here. Value head hv reads key head hv / (HV / H).
// Thread safety: plain views. Ownership: none; all pointers except the batch's index arrays are backend memory.
//
//   DeltaRuleParams p{.pool = pool, .batch = batch, .q = q, .k = k, .v = v, .g = g, .beta = beta, .output = o};
//   p.q_stride = p.k_stride = dims.key_features();  p.v_stride = dims.value_features();
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/packed_batch.h"
#include "kernels/common/state_layout.h"

namespace gdn {

struct DeltaRuleParams {
  StatePoolView pool;  // dims are pool.layout.dims()
  PackedBatch batch;
  // Rows are tokens; strides are floats from one token to the next.
  const float* q = nullptr;     // [tokens, H, K], already scaled
  const float* k = nullptr;     // [tokens, H, K]
  const float* v = nullptr;     // [tokens, HV, V]
  const float* g = nullptr;     // [tokens, HV] dense, or [tokens, HV, K] if dims decay by channel; log decay, <= 0
  const float* beta = nullptr;  // [tokens, HV] dense, write strength in [0, 2]
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  float* output = nullptr;  // [tokens, HV, V] dense
  // Upper bound of beta, promised by the caller from the model or the request, never from values. Above 1 the chunked
  // form runs the scan instead (delta_rule_chunk.h).
  float max_beta = 2.0f;

  BatchArrays arrays() const { return {.batch = batch}; }
};

// Addresses of a token's inputs for one value head (q and k are its key head's), its beta, and the address of its
// output. Nothing is owned.
struct HeadToken {
  const float* q;  // [K]
  const float* k;  // [K]
  const float* v;  // [V]
  const float* g;  // [dims.decay_dim()]
  float beta;
  float* output;  // [V]
};
inline HeadToken HeadTokenAt(const DeltaRuleParams& params, int64_t token, int64_t hv) {
  const LayerDims& dims = params.pool.layout.dims();
  const int64_t key_offset = hv / dims.group() * dims.key_dim;
  const int64_t row = token * dims.value_heads + hv;
  return {.q = params.q + token * params.q_stride + key_offset,
          .k = params.k + token * params.k_stride + key_offset,
          .v = params.v + token * params.v_stride + hv * dims.value_dim,
          .g = params.g + row * dims.decay_dim(),
          .beta = params.beta[row],
          .output = params.output + row * dims.value_dim};
}

// INVALID_ARGUMENT if the dims or the batch are invalid, a pointer is missing or a stride is shorter than its row.
// Without tokens, q to output may be null and strides are not checked. Values of tensors are never checked.
absl::Status ValidateDeltaRule(const DeltaRuleParams& params);

}  // namespace gdn
