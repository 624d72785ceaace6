// Copies shares of pieces. Threads: a block a share, a thread every 256th 16 bytes of it, or every 256th float where
// either side is not at a multiple of 16 bytes, or what is left. Bound by read and write bandwidth, and for the few
// rows of a draft by the launch.

#include "kernels/copy_pieces/copy_pieces.h"
#include "kernels/gpu/launch.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 256;

__global__ __launch_bounds__(kThreads) void CopyPiecesKernel(const CopyPiece* shares) {
  const CopyPiece share = shares[blockIdx.x];
  const auto floats = static_cast<int32_t>(share.floats);
  const bool vectors = ((reinterpret_cast<uintptr_t>(share.to) | reinterpret_cast<uintptr_t>(share.from)) & 15u) == 0;
  const int32_t whole = vectors ? floats / 4 : 0;
  for (int32_t i = threadIdx.x; i < whole; i += kThreads) Store4(share.to + 4 * i, Load4(share.from + 4 * i));
  for (int32_t i = 4 * whole + threadIdx.x; i < floats; i += kThreads) share.to[i] = share.from[i];
}

}  // namespace
}  // namespace gpu

absl::Status CopyPiecesGpu(const CopyPiece* shares, int64_t count, const gpu::Stream& stream) {
  return gpu::Launch("copy_pieces", gpu::CopyPiecesKernel, {count}, gpu::kThreads, stream, shares);
}

}  // namespace gdn
