// Per-head L2 normalisation of q and k, and the scale of q.
//
//   q_out = scale * q * rsqrt(sum q^2 + 1e-6)    k_out = k * rsqrt(sum k^2 + 1e-6)   (without `normalize`: only scale)
// Thread safety: any number of calls at a time. Outputs may alias inputs if the strides agree.
//
//   QkL2NormParams p{.key_heads = h, .key_dim = k, .rows = n, .scale = rsqrt_k, .q = qkv, .k = qkv + h * k, ...};
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/threads/thread_pool.h"
#include "kernels/gpu/stream.h"

namespace gdn {

inline constexpr float kL2NormEpsilon = 1e-6f;

struct QkL2NormParams {
  int32_t key_heads = 0;
  int32_t key_dim = 0;
  int64_t rows = 0;
  bool normalize = true;
  float scale = 1.0f;        // multiplies q only; finite
  const float* q = nullptr;  // [rows, H, K], in_stride floats from row to row
  const float* k = nullptr;  // [rows, H, K], in_stride floats from row to row
  int64_t in_stride = 0;
  float* q_out = nullptr;  // [rows, H, K] dense
  float* k_out = nullptr;  // [rows, H, K] dense
};

absl::Status ValidateQkL2Norm(const QkL2NormParams& params);
void QkL2NormReference(const QkL2NormParams& params);
absl::Status QkL2NormCpu(const QkL2NormParams& params, ThreadPool& pool);
absl::Status QkL2NormGpu(const QkL2NormParams& params, const gpu::Stream& stream);

}  // namespace gdn
