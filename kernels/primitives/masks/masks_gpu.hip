// Masks and identities on the GPU: tril with a diagonal offset, the strict causal mask, eye, I + x and I - x.
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

__global__ __launch_bounds__(kMatrixTileThreads) void EyeKernel(EyeParams p) {
  ForEachElement(p.rows, p.cols, [&](int64_t batch, int64_t row, int64_t col) {
    p.y[(batch * p.rows + row) * p.cols + col] = row == col ? 1.0f : 0.0f;
  });
}

__global__ __launch_bounds__(kMatrixTileThreads) void ApplyIdentityKernel(ApplyIdentityParams p) {
  ForEachElement(p.size, p.size, [&](int64_t batch, int64_t row, int64_t col) {
    const int64_t at = (batch * p.size + row) * p.size + col;
    const float identity = row == col ? 1.0f : 0.0f;
    p.y[at] = fmaf(p.sign, p.x[at], identity);
  });
}

}  // namespace
}  // namespace gpu

absl::Status TrilGpu(const TrilParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateTril(params));
  return gpu::Launch("tril", gpu::TrilKernel, {gpu::MatrixTiles(params.batch, params.rows, params.cols)},
                     gpu::kMatrixTileThreads, stream, params);
}

absl::Status CausalMaskGpu(const CausalMaskParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateCausalMask(params));
  const TrilParams tril{
      .batch = params.batch, .rows = params.size, .cols = params.size, .diagonal = -1, .x = params.x, .y = params.y};
  return gpu::Launch("causal_mask", gpu::TrilKernel, {gpu::MatrixTiles(params.batch, params.size, params.size)},
                     gpu::kMatrixTileThreads, stream, tril);
}

absl::Status EyeGpu(const EyeParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateEye(params));
  return gpu::Launch("eye", gpu::EyeKernel, {gpu::MatrixTiles(params.batch, params.rows, params.cols)},
                     gpu::kMatrixTileThreads, stream, params);
}

absl::Status ApplyIdentityGpu(const ApplyIdentityParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateApplyIdentity(params));
  return gpu::Launch("apply_identity", gpu::ApplyIdentityKernel,
                     {gpu::MatrixTiles(params.batch, params.size, params.size)}, gpu::kMatrixTileThreads, stream,
                     params);
}

}  // namespace gdn
