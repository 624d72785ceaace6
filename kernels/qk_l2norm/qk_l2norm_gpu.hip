// L2 normalisation of q's and k's heads on the GPU: y = scale x / sqrt(sum x^2 + 1e-6).
//
// Threads: kHeadLanes a head; the q heads of a row come before its k heads. A lane owns the same elements in both
// passes, so outputs may be the inputs. Resources: registers only; heads of more than kRegisterHeadDim elements, and
// those whose addresses do not allow 16-byte accesses, are read twice. Bound by memory.

#include "kernels/gpu/launch.h"
#include "kernels/qk_l2norm/head_norm-inl.h"
#include "kernels/qk_l2norm/qk_l2norm.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kHeadsPerBlock = kThreads / kHeadLanes;

template <int kWave>
__device__ __forceinline__ void NormalizeInRegisters(const QkL2NormParams& p, bool active, int lane, float scale,
                                                     const float* in, float* out) {
  const bool mine = active && 4 * lane < p.key_dim;
  const Vec4 x = mine ? Load4(in + 4 * lane) : Vec4{0.0f, 0.0f, 0.0f, 0.0f};
  const double total = HeadSum<kWave>(AddSquares(0.0, x));
  const float factor = p.normalize ? L2NormFactor(total, scale) : scale;
  if (mine) Store4(out + 4 * lane, Scale4(x, factor));
}

template <int kWave>
__device__ __forceinline__ void NormalizeInTwoPasses(const QkL2NormParams& p, bool active, int lane, float scale,
                                                     const float* in, float* out) {
  const int dim = active ? p.key_dim : 0;
  double sum = 0.0;
  ForEachOfLane(lane, dim, [&](int e) { sum = AddSquare(sum, in[e]); });
  const double total = HeadSum<kWave>(sum);
  const float factor = p.normalize ? L2NormFactor(total, scale) : scale;
  ForEachOfLane(lane, dim, [&](int e) { out[e] = in[e] * factor; });
}

template <int kWave, bool kInRegisters>
__global__ __launch_bounds__(kThreads) void QkL2NormKernel(QkL2NormParams p) {
  const int lane = static_cast<int>(threadIdx.x) % kHeadLanes;
  const int heads = 2 * p.key_heads;
  const int64_t count = p.rows * heads;
  // Whole blocks stride, so that every lane reaches every reduction.
  for (int64_t first = int64_t{blockIdx.x} * kHeadsPerBlock; first < count;
       first += int64_t{gridDim.x} * kHeadsPerBlock) {
    const int64_t index = first + threadIdx.x / kHeadLanes;
    const bool active = index < count;
    const int64_t row = active ? index / heads : 0;
    const int head_of_both = active ? static_cast<int>(index - row * heads) : 0;
    const bool is_query = head_of_both < p.key_heads;
    const int head = is_query ? head_of_both : head_of_both - p.key_heads;
    const float* in = (is_query ? p.q : p.k) + row * p.in_stride + int64_t{head} * p.key_dim;
    float* out = (is_query ? p.q_out : p.k_out) + (row * p.key_heads + head) * p.key_dim;
    const float scale = is_query ? p.scale : 1.0f;
    if constexpr (kInRegisters) {
      NormalizeInRegisters<kWave>(p, active, lane, scale, in, out);
    } else {
      NormalizeInTwoPasses<kWave>(p, active, lane, scale, in, out);
    }
  }
}

}  // namespace
}  // namespace gpu

absl::Status QkL2NormGpu(const QkL2NormParams& params, const gpu::Stream& stream) {
  const bool in_registers = params.key_dim <= gpu::kRegisterHeadDim && params.key_dim % 4 == 0 &&
                            params.in_stride % 4 == 0 && gpu::Aligned16(params.q, params.k, params.q_out, params.k_out);
  const int64_t blocks = gpu::StridedBlocks(params.rows * 2 * params.key_heads, gpu::kHeadsPerBlock, stream);
  return gpu::WithWaveWidth(stream, "qk_l2norm", [&](auto wave) {
    const auto kernel = in_registers ? gpu::QkL2NormKernel<wave(), true> : gpu::QkL2NormKernel<wave(), false>;
    return gpu::Launch("qk_l2norm", kernel, {blocks}, gpu::kThreads, stream, params);
  });
}

}  // namespace gdn
