// mask[i][j] = e^{G_i - G_j} for j <= i, e^{G_i} and e^{G_last - G_i} on the GPU, G the running sum of g.
//
// A block of 256 threads a chunk: thread t sums up to token t (a scan in LDS, in double), then the threads share out
// the mask's elements, neighbours along a row. Resources: 2 KB LDS. Bound by the exponentials.

#include "base/status_macros.h"
#include "kernels/common/log_decay_gpu-inl.h"
#include "kernels/gpu/launch.h"
#include "kernels/primitives/decay_mask/decay_mask.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = kMaxDecayMaskSize;

struct Shared {
  LdsArray<double, kThreads> sums;
};

__global__ __launch_bounds__(kThreads) void DecayMaskKernel(DecayMaskParams p) {
  Shared& s = SharedMemory<Shared>();
  const int thread = threadIdx.x;
  const int64_t batch = blockIdx.x;
  double sum = 0.0;
  if (thread < p.size) sum = static_cast<double>(ClampLogDecay(p.g[batch * p.g_batch_stride + thread * p.g_stride]));
#pragma unroll
  for (int distance = 1; distance < kThreads; distance *= 2) {
    s.sums[thread] = sum;
    SyncThreads();
    if (thread >= distance) {
      const double before = s.sums[thread - distance];
      sum += before;
    }
    SyncThreads();
  }
  s.sums[thread] = sum;
  SyncThreads();
  if (thread < p.size) {
    const double last = s.sums[p.size - 1];
    if (p.from_start != nullptr) p.from_start[batch * p.size + thread] = expf(static_cast<float>(sum));
    if (p.to_end != nullptr) p.to_end[batch * p.size + thread] = expf(static_cast<float>(last - sum));
  }
  if (p.mask == nullptr) return;
  float* mask = p.mask + batch * p.size * p.size;
  for (int at = thread; at < p.size * p.size; at += kThreads) {
    const int i = at / p.size;
    const int j = at % p.size;
    float value = 0.0f;
    if (j <= i) {
      const double later = s.sums[i];
      const double earlier = s.sums[j];
      value = expf(static_cast<float>(later - earlier));
    }
    mask[at] = value;
  }
}

}  // namespace
}  // namespace gpu

absl::Status DecayMaskGpu(const DecayMaskParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateDecayMask(params));
  return gpu::Launch("decay_mask", gpu::DecayMaskKernel, {params.size == 0 ? 0 : params.batch}, gpu::kThreads, stream,
                     params);
}

}  // namespace gdn
