// Gating on the GPU: g = -exp(A_log) softplus(a + dt_bias), beta = beta_scale sigmoid(b).
//
// Threads: one a (row, value head), striding over the grid. Resources: registers only. Bound by launch latency. Where a
// head has a decay for each key channel, or the gate is bounded, one a (head, channel), striding over rows: what a head
// or channel has of its own is read once. Bound by memory.

#include "kernels/gating/gating.h"
#include "kernels/gpu/gate_math.h"
#include "kernels/gpu/launch.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 256;

__global__ __launch_bounds__(kThreads) void GatingKernel(GatingParams p) {
  BeginEarly();
  const int64_t count = p.rows * p.value_heads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    const int head = static_cast<int>(i % p.value_heads);
    p.g[i] = LogDecay(p.a[i], p.a_log[head], p.dt_bias[head], p.convention == ALogConvention::kNegativeExp);
    p.beta[i] = p.beta_scale * Sigmoid(p.b[i]);
  }
}

__global__ __launch_bounds__(kThreads) void ChannelGatingKernel(GatingParams p) {
  BeginEarly();
  const int features = p.value_heads * p.decay_dim;
  const int feature = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (feature >= features) return;
  const int head = feature / p.decay_dim;
  const bool first = feature == head * p.decay_dim;  // of its head: it has beta
  const bool negative_exp = p.convention == ALogConvention::kNegativeExp;
  const float a_log = p.a_log[head];
  const float dt_bias = p.dt_bias[feature];
  for (int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    const float a = p.a[row * features + feature];
    p.g[row * features + feature] = p.gate == DecayGate::kBoundedSigmoid
                                        ? BoundedLogDecay(a, a_log, dt_bias, negative_exp, p.lower_bound)
                                        : LogDecay(a, a_log, dt_bias, negative_exp);
    if (first) p.beta[row * p.value_heads + head] = p.beta_scale * Sigmoid(p.b[row * p.value_heads + head]);
  }
}

}  // namespace
}  // namespace gpu

absl::Status GatingGpu(const GatingParams& params, const gpu::Stream& stream) {
  if (params.decay_dim != 1 || params.gate != DecayGate::kSoftplus) {
    const int64_t across = gpu::CeilDivide(int64_t{params.value_heads} * params.decay_dim, gpu::kThreads);
    const int64_t enough = gpu::CeilDivide(int64_t{stream.processors} * 16, across);
    const gpu::Grid grid{.x = across, .y = params.rows < enough ? params.rows : enough, .early = true};
    return gpu::Launch("gating", gpu::ChannelGatingKernel, grid, gpu::kThreads, stream, params);
  }
  const int64_t blocks = gpu::StridedBlocks(params.rows * params.value_heads, gpu::kThreads, stream);
  return gpu::Launch("gating", gpu::GatingKernel, {.x = blocks, .early = true}, gpu::kThreads, stream, params);
}

}  // namespace gdn
