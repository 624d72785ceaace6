// Masks and identities on the GPU: tril with a diagonal offset, I, I + x and I - x.
//
// Threads: tiles of 16 x 64 elements (matrix_tiles.h). Resources: registers only. Bound by memory.

#include "base/status_macros.h"
#include "kernels/gpu/launch.h"
#include "kernels/gpu/matrix_tiles.h"
#include "kernels/primitives/masks/masks.h"

namespace gdn {
namespace gpu {
namespace {

__global__ __launch_bounds__(kMatrixTileThreads) void TrilKernel(TrilParams p) {
  ForEachElement(p.rows, p.cols, [&](int64_t batch, int64_t row, int64_t col) {
    const int64_t at = (batch * p.rows + row) * p.cols + col;
    float value = 0.0f;
    if (col <= row + p.diagonal) value = p.x == nullptr ? 1.0f : p.x[at];
    p.y[at] = value;
  });
}

__global__ __launch_bounds__(kMatrixTileThreads) void IdentityKernel(IdentityParams p) {
  ForEachElement(p.rows, p.cols, [&](int64_t batch, int64_t row, int64_t col) {
    const int64_t at = (batch * p.rows + row) * p.cols + col;
    const float identity = row == col ? 1.0f : 0.0f;
    p.y[at] = p.x == nullptr ? identity : fmaf(p.sign, p.x[at], identity);
  });
}

}  // namespace
}  // namespace gpu

absl::Status TrilGpu(const TrilParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateTril(params));
  return gpu::Launch("tril", gpu::TrilKernel, {gpu::MatrixTiles(params.batch, params.rows, params.cols)},
                     gpu::kMatrixTileThreads, stream, params);
}

absl::Status IdentityGpu(const IdentityParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateIdentity(params));
  return gpu::Launch("identity", gpu::IdentityKernel, {gpu::MatrixTiles(params.batch, params.rows, params.cols)},
                     gpu::kMatrixTileThreads, stream, params);
}

}  // namespace gdn
