// Gating on the GPU: g = -exp(A_log) softplus(a + dt_bias), beta = beta_scale sigmoid(b).
//
// Threads: one a (row, value head), striding over the grid. Resources: registers only. Bound by launch latency.

#include "base/status_macros.h"
#include "kernels/gating/gating.h"
#include "kernels/gpu/gate_math.h"
#include "kernels/gpu/launch.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 256;

__global__ __launch_bounds__(kThreads) void GatingKernel(GatingParams p) {
  const int64_t count = p.rows * p.value_heads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    const int head = static_cast<int>(i % p.value_heads);
    p.g[i] = LogDecay(p.a[i], p.a_log[head], p.dt_bias[head], p.convention == ALogConvention::kNegativeExp);
    p.beta[i] = p.beta_scale * Sigmoid(p.b[i]);
  }
}

}  // namespace
}  // namespace gpu

absl::Status GatingGpu(const GatingParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateGating(params));
  const int64_t blocks = gpu::StridedBlocks(params.rows * params.value_heads, gpu::kThreads, stream);
  return gpu::Launch("gating", gpu::GatingKernel, {blocks}, gpu::kThreads, stream, params);
}

}  // namespace gdn
