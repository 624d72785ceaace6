// The delta rule, a chunk of C tokens at a time, in place on the base state, for long prefills. The logs must be empty.
//
// With G = cumsum g inside the chunk (double), per value head:
//   A_ij = beta_i (k_i . k_j) exp(G_i - G_j), j < i          U = (I + A)^-1 (beta (V - exp(G) K S))
//   O    = exp(G) Q S + tril(Q K^T exp(G_i - G_j)) U         S <- exp(G_C) S + (exp(G_C - G) K)^T U
// Differences of G are taken in double and masked before exp; there is no exp(G_i) * exp(-G_j).
// A tail shorter than C is a smaller chunk. Chunks start at each sequence's first row.
// If beta may be above 1 (max_beta), delta_rule_scan runs instead. 1 - beta k.k may then be near -1. A key that repeats
// is then never forgotten, and A's rounding, which is the same in every chunk, adds up with T. The scan computes k^T S
// from K elements with independent rounding.
// Source: Yang et al., arXiv:2412.06464, section 3.3. Thread safety and bits: as delta_rule_scan.
//
//   GDN_RETURN_IF_ERROR(backend.DeltaRuleChunk(params));
#pragma once

#include "base/threads/thread_pool.h"
#include "kernels/common/delta_rule.h"
#include "kernels/gpu/stream.h"

namespace gdn {

// True if the chunked form runs the scan instead for this call.
inline bool ChunkTakesScan(const DeltaRuleParams& params) { return params.max_beta > 1.0f; }

inline constexpr int32_t kChunkTokens = 64;        // C on the CPU. Part of numerics_id.
inline constexpr int32_t kGpuChunkTokens = 32;     // C on the GPU: the largest that fits the LDS. Part of numerics_id.
inline constexpr int32_t kMatrixChunkTokens = 64;  // C on matrix units, which numerics_id names as "mma"

// Computes with SIMD on the CPU, on the threads of `pool`, and returns when done; params must be valid.
// RESOURCE_EXHAUSTED if there is no memory for scratch. The reference is DeltaRuleScanReference: the two forms are
// equal in exact arithmetic.
absl::Status DeltaRuleChunkCpu(const DeltaRuleParams& params, ThreadPool& pool);

// Returns the floats of device memory that DeltaRuleChunkGpu needs for `workspace`; grows with tokens and sequences. 0
// if there are no sequences, or if the scan runs because of max_beta.
int64_t GpuWorkspaceFloats(const DeltaRuleParams& params, const gpu::Stream& stream);

// Issues the kernels on `stream`. Bases are [HV][V][K] in device memory. `batch` is params.batch with its arrays on the
// device. `workspace` is GpuWorkspaceFloats floats of device memory, 16-byte aligned. Calls with max_beta above 1, keys
// of more than 256 elements, or strides over 2^24 floats (including the output's, HV V) run DeltaRuleScanGpu, which is
// as accurate.
absl::Status DeltaRuleChunkGpu(const DeltaRuleParams& params, const gpu::DeviceBatch& batch, float* workspace,
                               const gpu::Stream& stream);

}  // namespace gdn
