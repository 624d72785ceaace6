// Causal depthwise conv1d + SiLU over the [q | k | v] channels; the state slot keeps the newest inputs between calls.
//
//   y[t, c] = silu(sum_{w < W} weight[c, w] * x[t - W + 1 + w, c])    x before the call's first row comes from the slot
// Prefill and decode are the same call. Let n be the sequence's token count before the call. The call reads the columns
// of tokens n - W + 1 .. n - 1 from the slot's ring (zero for negative tokens). Then it stores the columns of its
// newest min(T, P) rows there; other columns are unchanged. The sum's order does not depend on T, so any split of the
// rows over calls gives the same bits.
// Thread safety: concurrent calls must use different slots.
//
//   CausalConv1dParams p{.pool = pool, .batch = batch, .token_counts = counts, .x = mixed_qkv, .weight = w, .y = qkv};
//   GDN_RETURN_IF_ERROR(backend.CausalConv1d(p));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/threads/thread_pool.h"
#include "kernels/common/packed_batch.h"
#include "kernels/common/state_layout.h"
#include "kernels/gpu/stream.h"

namespace gdn {

struct CausalConv1dParams {
  StatePoolView pool;  // channels C and width W are pool.layout.dims()
  PackedBatch batch;
  const int64_t* token_counts = nullptr;  // [sequences] host memory: each session's tokens before this call, >= 0
  const float* x = nullptr;               // [tokens, C] dense
  const float* weight = nullptr;          // [C, W]; tap W - 1 multiplies the current token
  float* y = nullptr;                     // [tokens, C] dense; may not alias x

  BatchArrays arrays() const { return {.batch = batch, .token_counts = token_counts}; }
};

absl::Status ValidateCausalConv1d(const CausalConv1dParams& params);
void CausalConv1dReference(const CausalConv1dParams& params);
absl::Status CausalConv1dCpu(const CausalConv1dParams& params, ThreadPool& pool);
// Issues the kernel on `stream` and may return before it has run. `batch` holds params.batch and params.token_counts in
// device memory; the params must be valid.
absl::Status CausalConv1dGpu(const CausalConv1dParams& params, const gpu::DeviceBatch& batch,
                             const gpu::Stream& stream);

}  // namespace gdn
