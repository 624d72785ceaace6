// Copies to or from page-locked host memory. Threads: a block a piece of 4 KiB, a thread 16 bytes of it, or every 256th
// byte where a side is not at a multiple of 16 bytes, and of the last bytes. Bound by the latency of the bus.

#include "kernels/gpu/launch.h"
#include "kernels/host_copy/host_copy.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 256;
static_assert(kHostCopyBlockBytes == 16 * kThreads);

__global__ __launch_bounds__(kThreads) void HostCopyKernel(char* to, const char* from, int64_t bytes, bool vectors,
                                                           uint32_t* flags, uint32_t number) {
  BeginEarly();
  const int64_t first = int64_t{blockIdx.x} * kHostCopyBlockBytes;
  const auto left =
      static_cast<int32_t>(bytes - first < int64_t{kHostCopyBlockBytes} ? bytes - first : int64_t{kHostCopyBlockBytes});
  to += first;
  from += first;
  const int32_t whole = vectors ? left / 16 : 0;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread < whole) {
    Store4(reinterpret_cast<float*>(to) + 4 * thread, Load4(reinterpret_cast<const float*>(from) + 4 * thread));
  }
  for (int32_t i = 16 * whole + thread; i < left; i += kThreads) to[i] = from[i];
  if (flags == nullptr) return;
  ShowToHost();
  SyncThreads();
  if (thread == 0) StoreForHost(flags + blockIdx.x, number);
}

}  // namespace
}  // namespace gpu

absl::Status HostCopyGpu(void* to, const void* from, size_t bytes, uint32_t* flags, uint32_t number,
                         const gpu::Stream& stream) {
  return gpu::Launch("host_copy", gpu::HostCopyKernel, {.x = HostCopyBlocks(bytes), .early = true}, gpu::kThreads,
                     stream, static_cast<char*>(to), static_cast<const char*>(from), static_cast<int64_t>(bytes),
                     gpu::Aligned16(to, from), flags, number);
}

}  // namespace gdn
