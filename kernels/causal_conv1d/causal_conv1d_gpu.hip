// Causal depthwise conv1d + SiLU on the GPU: y[t, c] = silu(sum_w weight[c, w] x[t - W + 1 + w, c]).
//
// Threads: one for four channels of a tile of tokens (conv_channels-inl.h). For the models' width of 4 the taps and
// the last three inputs stay in registers, so each input is read once a tile. Resources: registers only. Bound by
// memory.

#include "kernels/causal_conv1d/causal_conv1d.h"
#include "kernels/causal_conv1d/conv_channels-inl.h"
#include "kernels/gpu/launch.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 128;
constexpr int kChannelsPerBlock = 4 * kThreads;

struct SameChannel {
  __device__ __forceinline__ int32_t operator()(int32_t channel) const { return channel; }
};

struct ConvArgs {
  ConvGeometry geometry;
  const float* x;
  const float* weight;
  float* y;
};

template <bool kVector>
__global__ __launch_bounds__(kThreads) void CausalConv1dKernel(ConvArgs p) {
  BeginEarly();
  const int32_t channel = static_cast<int32_t>(blockIdx.x * kChannelsPerBlock + 4 * threadIdx.x);
  if (channel >= p.geometry.channels) return;
  ConvolveChannels<kVector>(p.geometry, p.x, p.geometry.channels, SameChannel(), p.weight, channel, p.y);
}

}  // namespace
}  // namespace gpu

absl::Status CausalConv1dGpu(const CausalConv1dParams& params, const gpu::DeviceBatch& batch,
                             const gpu::Stream& stream) {
  gpu::ConvArgs args{
      .geometry = gpu::MakeConvGeometry(params.pool, batch), .x = params.x, .weight = params.weight, .y = params.y};
  const bool vector = args.geometry.width == 4 && args.geometry.channels % 4 == 0 &&
                      gpu::Aligned16(params.pool.data, params.x, params.weight, params.y);
  const int64_t blocks = gpu::CeilDivide(args.geometry.channels, gpu::kChannelsPerBlock);
  gpu::Grid grid = gpu::PlanConvTiles(blocks, stream, args.geometry);
  grid.early = true;
  const auto kernel = vector ? gpu::CausalConv1dKernel<true> : gpu::CausalConv1dKernel<false>;
  return gpu::Launch("causal_conv1d", kernel, grid, gpu::kThreads, stream, args);
}

}  // namespace gdn
