// y[b][j][i] = x[b][i][j] on the GPU.
//
// A block of 256 threads moves a tile of 32 x 32 through LDS, rows of 33 so that a column's elements lie in different
// banks; both sides are read and written 32 neighbours at a time. Tiles are counted in one dimension (across a row of
// tiles first), so there are no grid dimensions to confuse and no limit of 65535 on any of them. Resources: 4.1 KB LDS.
// Bound by memory.

#include "base/status_macros.h"
#include "kernels/gpu/launch.h"
#include "kernels/primitives/transpose/transpose.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 32;
constexpr int kPitch = kTile + 1;
constexpr int kRowsAtOnce = kThreads / kTile;

struct Shared {
  LdsArray<float, kTile * kPitch> tile;
};

__global__ __launch_bounds__(kThreads) void TransposeKernel(TransposeParams p) {
  Shared& s = SharedMemory<Shared>();
  const int64_t tiles_down = (p.rows + kTile - 1) / kTile;
  const int64_t tiles_across = (p.cols + kTile - 1) / kTile;
  const int64_t tile = blockIdx.x;
  const int64_t batch = tile / (tiles_down * tiles_across);
  const int64_t in_matrix = tile % (tiles_down * tiles_across);
  const int64_t first_row = in_matrix / tiles_across * kTile;
  const int64_t first_col = in_matrix % tiles_across * kTile;
  const float* x = p.x + batch * p.rows * p.cols;
  float* y = p.y + batch * p.rows * p.cols;
  const int fast = static_cast<int>(threadIdx.x) % kTile;
  const int slow = static_cast<int>(threadIdx.x) / kTile;
#pragma unroll
  for (int step = 0; step < kTile; step += kRowsAtOnce) {
    const int i = slow + step;
    const bool there = first_row + i < p.rows && first_col + fast < p.cols;
    s.tile[i * kPitch + fast] = there ? x[(first_row + i) * p.cols + first_col + fast] : 0.0f;
  }
  SyncThreads();
#pragma unroll
  for (int step = 0; step < kTile; step += kRowsAtOnce) {
    const int i = slow + step;
    if (first_col + i < p.cols && first_row + fast < p.rows) {
      const float value = s.tile[fast * kPitch + i];
      y[(first_col + i) * p.rows + first_row + fast] = value;
    }
  }
}

}  // namespace
}  // namespace gpu

absl::Status TransposeGpu(const TransposeParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateTranspose(params));
  const int64_t tiles =
      params.batch * gpu::CeilDivide(params.rows, gpu::kTile) * gpu::CeilDivide(params.cols, gpu::kTile);
  return gpu::Launch("transpose", gpu::TransposeKernel, {tiles}, gpu::kThreads, stream, params);
}

}  // namespace gdn
