// Gated RMSNorm on the GPU: y = w x / sqrt(mean x^2 + eps) gate(z), a head at a time.
//
// Threads: kHeadLanes a head. A lane owns the same elements in both passes, so y may be x. Resources: registers only;
// heads of more than kRegisterHeadDim elements, and those whose addresses do not allow 16-byte accesses, are read
// twice. Bound by memory.

#include "base/status_macros.h"
#include "kernels/gated_rmsnorm/gated_norm-inl.h"
#include "kernels/gpu/launch.h"
#include "kernels/qk_l2norm/head_norm-inl.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kHeadsPerBlock = kThreads / kHeadLanes;

// y is already at the row's place.
template <int kWave>
__device__ __forceinline__ void NormalizeInRegisters(const GatedRmsNormParams& p, bool active, int lane, int64_t offset,
                                                     float* y) {
  constexpr Vec4 kZero{0.0f, 0.0f, 0.0f, 0.0f};
  const int e = 4 * lane;
  const bool mine = active && e < p.value_dim;
  const Vec4 x = mine ? Load4(p.x + offset + e) : kZero;
  const Vec4 z = mine ? Load4(p.z + offset + e) : kZero;
  const Vec4 w = mine ? Load4(p.weight + e) : kZero;
  const float factor = RmsFactor(HeadSum<kWave>(AddSquares(0.0, x)), p.value_dim, p.epsilon);
  if (!mine) return;
  StoreNormed<kWave>(p, y + e,
                     Vec4{NormalizeAndGate(p, x.x, factor, w.x, z.x), NormalizeAndGate(p, x.y, factor, w.y, z.y),
                          NormalizeAndGate(p, x.z, factor, w.z, z.z), NormalizeAndGate(p, x.w, factor, w.w, z.w)});
}

template <int kWave>
__device__ __forceinline__ void NormalizeInTwoPasses(const GatedRmsNormParams& p, bool active, int lane, int64_t offset,
                                                     float* y) {
  const int dim = active ? p.value_dim : 0;
  const float* x = p.x + offset;
  double sum = 0.0;
  ForEachOfLane(lane, dim, [&](int e) { sum = AddSquare(sum, x[e]); });
  const float factor = RmsFactor(HeadSum<kWave>(sum), p.value_dim, p.epsilon);
  ForEachOfLane(lane, dim, [&](int e) {
    StoreNormed<kWave>(p, y + e, NormalizeAndGate(p, x[e], factor, p.weight[e], p.z[offset + e]));
  });
}

template <int kWave, bool kInRegisters>
__global__ __launch_bounds__(kThreads) void GatedRmsNormKernel(GatedRmsNormParams p) {
  BeginEarly();
  const int lane = static_cast<int>(threadIdx.x) % kHeadLanes;
  // Whole blocks stride, so that every lane reaches every reduction.
  for (int64_t first = int64_t{blockIdx.x} * kHeadsPerBlock; first < p.rows;
       first += int64_t{gridDim.x} * kHeadsPerBlock) {
    const int64_t row = first + threadIdx.x / kHeadLanes;
    const bool active = row < p.rows;
    const int64_t offset = active ? row * p.value_dim : 0;
    float* y = p.y + (active && p.group > 1 ? TiledRow(p, row) * p.value_dim : offset);
    if constexpr (kInRegisters) {
      NormalizeInRegisters<kWave>(p, active, lane, offset, y);
    } else {
      NormalizeInTwoPasses<kWave>(p, active, lane, offset, y);
    }
  }
}

}  // namespace
}  // namespace gpu

absl::Status GatedRmsNormGpu(const GatedRmsNormParams& params, const gpu::Stream& stream) {
  if (stream.wave_width != 32) GDN_RETURN_IF_ERROR(RefuseTerms(params));
  const bool in_registers = params.value_dim <= gpu::kRegisterHeadDim && params.value_dim % 4 == 0 &&
                            gpu::Aligned16(params.x, params.z, params.weight, params.y, params.terms);
  const int64_t blocks = gpu::StridedBlocks(params.rows, gpu::kHeadsPerBlock, stream);
  return gpu::WithWaveWidth(stream, "gated_rmsnorm", [&](auto wave) {
    const auto kernel = in_registers ? gpu::GatedRmsNormKernel<wave(), true> : gpu::GatedRmsNormKernel<wave(), false>;
    return gpu::Launch("gated_rmsnorm", kernel, {.x = blocks, .early = true}, gpu::kThreads, stream, params);
  });
}

}  // namespace gdn
