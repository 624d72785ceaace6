// l2norm on the GPU: y = x r with r = 1 / sqrt(sum x^2 + eps), and dx = r dy - x r^3 sum(dy x).
//
// Threads: 32 lanes a row, 8 rows a block. A lane owns columns 4 (lane + 32 j) .. + 3 and sums them in four
// accumulators, whether or not they can be loaded 16 bytes at once, so a row's bits do not depend on where it lies.
// Resources: registers only. Bound by memory; rows of up to a few thousand floats come from the cache the second time.

#include "base/status_macros.h"
#include "kernels/gpu/launch.h"
#include "kernels/gpu/vec4_math.h"
#include "kernels/gpu/wave.h"
#include "kernels/primitives/l2norm/l2norm.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 32;
constexpr int kRowsPerBlock = kThreads / kLanes;
constexpr int kStep = 4 * kLanes;  // columns that a row's lanes take at a time

__device__ __forceinline__ void Accumulate(Vec4& sum, const Vec4& a, const Vec4& b) {
  sum.x = fmaf(a.x, b.x, sum.x);
  sum.y = fmaf(a.y, b.y, sum.y);
  sum.z = fmaf(a.z, b.z, sum.z);
  sum.w = fmaf(a.w, b.w, sum.w);
}
template <int kWave>
__device__ __forceinline__ float RowSum(const Vec4& v) {
  return GroupSum<kLanes, kWave>((v.x + v.y) + (v.z + v.w));
}

template <int kWave>
__global__ __launch_bounds__(kThreads) void L2NormKernel(L2NormParams p, bool vector) {
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kLanes;
  const int64_t width = row < p.rows ? p.width : 0;  // rows that are not there are empty: all lanes reach the sum
  const float* x = p.x + row * p.width;
  const int first = 4 * (static_cast<int>(threadIdx.x) % kLanes);
  Vec4 squares = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int64_t col = first; col < width; col += kStep) {
    const Vec4 v = LoadSome(x + col, width - col, vector);
    Accumulate(squares, v, v);
  }
  const float r = 1.0f / sqrtf(RowSum<kWave>(squares) + p.epsilon);
  for (int64_t col = first; col < width; col += kStep) {
    const Vec4 v = LoadSome(x + col, width - col, vector);
    StoreSome(p.y + row * p.width + col, width - col, vector, {v.x * r, v.y * r, v.z * r, v.w * r});
  }
}

template <int kWave>
__global__ __launch_bounds__(kThreads) void L2NormBackwardKernel(L2NormBackwardParams p, bool vector) {
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kLanes;
  const int64_t width = row < p.rows ? p.width : 0;
  const float* x = p.x + row * p.width;
  const float* dy = p.dy + row * p.width;
  const int first = 4 * (static_cast<int>(threadIdx.x) % kLanes);
  Vec4 squares = {0.0f, 0.0f, 0.0f, 0.0f};
  Vec4 products = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int64_t col = first; col < width; col += kStep) {
    const Vec4 v = LoadSome(x + col, width - col, vector);
    const Vec4 d = LoadSome(dy + col, width - col, vector);
    Accumulate(squares, v, v);
    Accumulate(products, v, d);
  }
  const float r = 1.0f / sqrtf(RowSum<kWave>(squares) + p.epsilon);
  // r^3 alone overflows for short rows before the product with the sum does.
  const float along = r * (r * (r * RowSum<kWave>(products)));
  for (int64_t col = first; col < width; col += kStep) {
    const Vec4 v = LoadSome(x + col, width - col, vector);
    const Vec4 d = LoadSome(dy + col, width - col, vector);
    StoreSome(p.dx + row * p.width + col, width - col, vector,
              {fmaf(-along, v.x, r * d.x), fmaf(-along, v.y, r * d.y), fmaf(-along, v.z, r * d.z),
               fmaf(-along, v.w, r * d.w)});
  }
}

}  // namespace
}  // namespace gpu

absl::Status L2NormGpu(const L2NormParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateL2Norm(params));
  const bool vector = params.width % 4 == 0 && gpu::Aligned16(params.x, params.y);
  return gpu::WithWaveWidth(stream, "l2norm", [&](auto wave) {
    return gpu::Launch("l2norm", gpu::L2NormKernel<wave()>, {gpu::CeilDivide(params.rows, gpu::kRowsPerBlock)},
                       gpu::kThreads, stream, params, vector);
  });
}

absl::Status L2NormBackwardGpu(const L2NormBackwardParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateL2NormBackward(params));
  const bool vector = params.width % 4 == 0 && gpu::Aligned16(params.x, params.dy, params.dx);
  return gpu::WithWaveWidth(stream, "l2norm_backward", [&](auto wave) {
    return gpu::Launch("l2norm_backward", gpu::L2NormBackwardKernel<wave()>,
                       {gpu::CeilDivide(params.rows, gpu::kRowsPerBlock)}, gpu::kThreads, stream, params, vector);
  });
}

}  // namespace gdn
