// Zero fill. Threads: one a 16-byte store, striding over the grid; the last 0 to 3 words by the first threads.
// Bound by write bandwidth.

#include "kernels/fill/fill.h"
#include "kernels/gpu/launch.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 256;

__global__ __launch_bounds__(kThreads) void FillZeroKernel(float* data, int64_t vectors, int32_t rest) {
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t i = first; i < vectors; i += int64_t{gridDim.x} * kThreads) {
    Store4(data + 4 * i, Vec4{0.0f, 0.0f, 0.0f, 0.0f});
  }
  if (first < rest) data[4 * vectors + first] = 0.0f;
}

}  // namespace
}  // namespace gpu

absl::Status FillZeroGpu(void* data, size_t bytes, const gpu::Stream& stream) {
  if (bytes < sizeof(float)) return absl::OkStatus();
  const int64_t words = static_cast<int64_t>(bytes / sizeof(float));
  const int64_t vectors = words / 4;
  const int64_t blocks = gpu::StridedBlocks(vectors > 0 ? vectors : 1, gpu::kThreads, stream);
  return gpu::Launch("fill_zero", gpu::FillZeroKernel, {blocks}, gpu::kThreads, stream, static_cast<float*>(data),
                     vectors, static_cast<int32_t>(words - 4 * vectors));
}

}  // namespace gdn
