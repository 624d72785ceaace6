// Inverts a chunk's I + A on the GPU with a block of 256 threads: T = [T1 0; -T2 A21 T1, T2]. The two diagonal blocks
// are solved by substitution, one column per lane; then follow two products of 16 x 16.
//
// Thread safety: every lane of the block takes part. For *_gpu.hip files only.
//
//   SyncThreads();
//   WriteInverse(sh.a, sh.t, sh.product, sh.beta, out + ChunkWorkspace::kT);
#pragma once

#include "kernels/common/base_columns_gpu-inl.h"
#include "kernels/delta_rule_chunk/delta_rule_chunk.h"

namespace gdn::gpu {

inline constexpr int kChunkHalf = kGpuChunkTokens / 2;
inline constexpr int kChunkStride = kGpuChunkTokens + 4;  // row stride of a chunk's matrix in LDS
static_assert(kChunkHalf == 16 && kDeltaRuleThreads == kChunkHalf * kChunkHalf);

// Computes column `c` (0 .. 15) of the inverse of diagonal block `b` of I + A, in one lane. Blocks are of 16 x 16; rows
// of `matrix` and `inverse` are kStride floats apart.
template <int kStride, typename Matrix, typename Inverse>
__device__ __forceinline__ void SolveColumn(Matrix& matrix, Inverse& inverse, int b, int c) {
  float t[kChunkHalf];
#pragma unroll
  for (int i = 0; i < kChunkHalf; ++i) {
    float sum[2] = {i == c ? 1.0f : 0.0f, 0.0f};
#pragma unroll
    for (int m = 0; m < i; m += 4) {
      // A is zero from the diagonal on, and so is t past i, so elements inside a vector need no guards.
      const Vec4 a = matrix.Load4((b * kChunkHalf + i) * kStride + b * kChunkHalf + m);
      sum[0] = fmaf(-a.x, t[m], sum[0]);
      if (m + 1 < i) sum[1] = fmaf(-a.y, t[m + 1], sum[1]);
      if (m + 2 < i) sum[0] = fmaf(-a.z, t[m + 2], sum[0]);
      if (m + 3 < i) sum[1] = fmaf(-a.w, t[m + 3], sum[1]);
    }
    t[i] = sum[0] + sum[1];
  }
#pragma unroll
  for (int i = 0; i < kChunkHalf; ++i) inverse[(b * kChunkHalf + i) * kStride + b * kChunkHalf + c] = t[i];
}

// out [C][C] <- (I + A)^-1 diag(beta), with zeros above the diagonal. `matrix` is A [C][kChunkStride] in LDS, zero from
// the diagonal on; `beta` is [C]. `inverse` (as large as A) and `product` [C / 2][C / 2] are scratch in LDS. All 256
// threads call, after a barrier behind the writes of A and beta.
template <typename Matrix, typename Inverse, typename Product, typename Beta>
__device__ __forceinline__ void WriteInverse(Matrix& matrix, Inverse& inverse, Product& product, Beta& beta,
                                             float* out) {
  const int thread = static_cast<int>(threadIdx.x);
  const int ti = thread / kChunkHalf;
  const int tj = thread % kChunkHalf;
  if (thread < kGpuChunkTokens) SolveColumn<kChunkStride>(matrix, inverse, thread / kChunkHalf, thread % kChunkHalf);
  SyncThreads();

  float left = 0.0f;
#pragma unroll
  for (int m = 0; m < kChunkHalf; ++m) {
    const float a = matrix[(kChunkHalf + ti) * kChunkStride + m];
    const float t = inverse[m * kChunkStride + tj];
    left = fmaf(a, t, left);
  }
  product[ti * kChunkHalf + tj] = left;
  SyncThreads();
  float corner = 0.0f;
#pragma unroll
  for (int m = 0; m < kChunkHalf; ++m) {
    const float t = inverse[(kChunkHalf + ti) * kChunkStride + kChunkHalf + m];
    const float x = product[m * kChunkHalf + tj];
    corner = fmaf(-t, x, corner);
  }
  const float beta_left = beta[tj];
  const float beta_right = beta[kChunkHalf + tj];
  const float upper = inverse[ti * kChunkStride + tj];
  const float lower = inverse[(kChunkHalf + ti) * kChunkStride + kChunkHalf + tj];
  out[ti * kGpuChunkTokens + tj] = upper * beta_left;
  out[ti * kGpuChunkTokens + kChunkHalf + tj] = 0.0f;
  out[(kChunkHalf + ti) * kGpuChunkTokens + tj] = corner * beta_left;
  out[(kChunkHalf + ti) * kGpuChunkTokens + kChunkHalf + tj] = lower * beta_right;
}

}  // namespace gdn::gpu
