// The delta rule, a chunk of C tokens at a time, in place on the base state. The log must be empty. The long-prefill
// path.
//
// With G = cumsum g inside the chunk (double), per value head:
//   A_ij = beta_i (k_i . k_j) exp(G_i - G_j), j < i          U = (I + A)^-1 (beta (V - exp(G) K S))
//   O    = exp(G) Q S + tril(Q K^T exp(G_i - G_j)) U         S <- exp(G_C) S + (exp(G_C - G) K)^T U
// Differences of G are taken in double and masked before exp; there is no exp(G_i) * exp(-G_j).
// A tail shorter than C is a smaller chunk. Chunks are counted from each sequence's first row.
// If beta may be above 1 (max_beta), the call goes through delta_rule_scan. 1 - beta k.k may then be near -1: a key
// that repeats is never forgotten, and A's rounding, the same in every chunk, adds up with T. The scan reads k^T S from
// K elements, which round each for itself.
// Source: Yang et al., arXiv:2412.06464, section 3.3. Thread safety and bits: as delta_rule_scan.
//
//   GDN_RETURN_IF_ERROR(backend.DeltaRuleChunk(params));
#pragma once

#include "base/thread_pool.h"
#include "kernels/common/delta_rule.h"
#include "kernels/gpu/stream.h"

namespace gdn {

// Whether a call of the chunked form takes the scan.
inline bool ChunkTakesScan(const DeltaRuleParams& params) { return params.max_beta > 1.0f; }

inline constexpr int32_t kChunkTokens = 64;     // C on the CPU. Part of numerics_id.
inline constexpr int32_t kGpuChunkTokens = 32;  // C on the GPU: what fits its LDS. Part of numerics_id.

// SIMD. The reference is DeltaRuleScanReference: the two forms are equal in exact arithmetic.
absl::Status DeltaRuleChunkCpu(const DeltaRuleParams& params, ThreadPool& pool);

// Device memory that a call needs beside its tensors; grows with tokens and sequences, from the host's batch alone.
int64_t DeltaRuleChunkGpuWorkspaceFloats(const DeltaRuleParams& params);

// Bases are [HV][V][K] in device memory. params.batch is the host's view of `batch`. `workspace` is 16-byte aligned.
// Calls with max_beta above 1, keys of more than 256 elements, and strides over 2^24 floats (HV V, the output's, is
// one), go through DeltaRuleScanGpu, whose results are as good.
absl::Status DeltaRuleChunkGpu(const DeltaRuleParams& params, const gpu::DeviceBatch& batch, float* workspace,
                               const gpu::Stream& stream);

}  // namespace gdn
