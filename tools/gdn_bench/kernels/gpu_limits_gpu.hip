// The loops behind a GPU's limits: float4 copy, read, update in place, and multiply-adds in registers.
//
// Threads: 256 a block. Copy and update: a tile of 16 KB a block, four 16-byte loads a thread in flight before the
// first store, neighbouring lanes on neighbouring addresses. Read: the same tiles, a grid that fills the device
// striding over them, four independent sums. Multiply-adds: eight independent chains a thread, 128 to a turn of the
// loop. Resources: registers only. Bound by memory, and by arithmetic.

#include "kernels/gpu/launch.h"
#include "tools/gdn_bench/kernels/gpu_limits.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 4;
constexpr int64_t kTileFloats = bench::kGpuTileFloats;
static_assert(kTileFloats == kThreads * kLoads * 4);
constexpr int64_t kLoadStride = int64_t{kThreads} * 4;  // floats between a thread's loads
constexpr int kBlocksPerProcessor = 16;

__global__ __launch_bounds__(kThreads) void StreamFillKernel(float* data, float value) {
  const int64_t first = int64_t{blockIdx.x} * kTileFloats + int64_t{threadIdx.x} * 4;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) Store4(data + first + i * kLoadStride, Vec4{value, value, value, value});
}

__global__ __launch_bounds__(kThreads) void StreamCopyKernel(const float* __restrict__ src, float* __restrict__ dst) {
  const int64_t first = int64_t{blockIdx.x} * kTileFloats + int64_t{threadIdx.x} * 4;
  Vec4 x[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) x[i] = Load4(src + first + i * kLoadStride);
#pragma unroll
  for (int i = 0; i < kLoads; ++i) Store4(dst + first + i * kLoadStride, x[i]);
}

__global__ __launch_bounds__(kThreads) void StreamUpdateKernel(float* data, float factor) {
  const int64_t first = int64_t{blockIdx.x} * kTileFloats + int64_t{threadIdx.x} * 4;
  Vec4 x[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) x[i] = Load4(data + first + i * kLoadStride);
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    Store4(data + first + i * kLoadStride, Vec4{x[i].x * factor, x[i].y * factor, x[i].z * factor, x[i].w * factor});
  }
}

__global__ __launch_bounds__(kThreads) void StreamReadKernel(const float* __restrict__ data, int64_t tiles,
                                                             float* sums) {
  float sum[kLoads] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const float* first = data + tile * kTileFloats + int64_t{threadIdx.x} * 4;
    Vec4 x[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) x[i] = Load4(first + i * kLoadStride);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum[i] += (x[i].x + x[i].y) + (x[i].z + x[i].w);
  }
  sums[int64_t{blockIdx.x} * kThreads + threadIdx.x] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

__global__ __launch_bounds__(kThreads) void MultiplyAddsKernel(int64_t rounds, float multiplier, float addend,
                                                               float fixed_point, float* means) {
  constexpr int kChains = bench::kGpuAccumulators;
  // Different values, or a compiler would keep one chain.
  float x[kChains];
#pragma unroll
  for (int j = 0; j < kChains; ++j) x[j] = fixed_point + static_cast<float>(j);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma unroll
    for (int step = 0; step < bench::kGpuStepsPerRound; ++step) {
#pragma unroll
      for (int j = 0; j < kChains; ++j) x[j] = fmaf(x[j], multiplier, addend);
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kChains; ++j) sum += x[j];
  means[int64_t{blockIdx.x} * kThreads + threadIdx.x] = sum * (1.0f / kChains);
}

int64_t Blocks(const Stream& stream) { return int64_t{stream.processors} * kBlocksPerProcessor; }

}  // namespace
}  // namespace gpu

namespace bench {

int64_t GpuLimitThreads(const gpu::Stream& stream) { return gpu::Blocks(stream) * gpu::kThreads; }

absl::Status StreamFillGpu(float* data, int64_t floats, float value, const gpu::Stream& stream) {
  return gpu::Launch("stream fill", gpu::StreamFillKernel, {floats / kGpuTileFloats}, gpu::kThreads, stream, data,
                     value);
}

absl::Status StreamCopyGpu(const float* src, float* dst, int64_t floats, const gpu::Stream& stream) {
  return gpu::Launch("stream copy", gpu::StreamCopyKernel, {floats / kGpuTileFloats}, gpu::kThreads, stream, src, dst);
}

absl::Status StreamUpdateGpu(float* data, int64_t floats, float factor, const gpu::Stream& stream) {
  return gpu::Launch("stream update", gpu::StreamUpdateKernel, {floats / kGpuTileFloats}, gpu::kThreads, stream, data,
                     factor);
}

absl::Status StreamReadGpu(const float* data, int64_t floats, float* sums, const gpu::Stream& stream) {
  return gpu::Launch("stream read", gpu::StreamReadKernel, {gpu::Blocks(stream)}, gpu::kThreads, stream, data,
                     floats / kGpuTileFloats, sums);
}

absl::Status MultiplyAddsGpu(int64_t rounds, float multiplier, float addend, float* means, const gpu::Stream& stream) {
  return gpu::Launch("multiply-adds", gpu::MultiplyAddsKernel, {gpu::Blocks(stream)}, gpu::kThreads, stream, rounds,
                     multiplier, addend, addend / (1.0f - multiplier), means);
}

}  // namespace bench
}  // namespace gdn
