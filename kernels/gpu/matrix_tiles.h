// Element-wise work on a batch of row-major matrices: each block handles one tile of 16 x 64 elements. Tiles are
// numbered in one dimension, so that no matrix is too tall for a grid.
//
// 256 threads: four rows of 64 neighbours at a time. Divides once per block.
//
//   ForEachElement(p.rows, p.cols, [&](int64_t batch, int64_t row, int64_t col) { ... });
//   Launch("tril", TrilKernel, {MatrixTiles(p.batch, p.rows, p.cols)}, kMatrixTileThreads, stream, p);
#pragma once

#include <cstdint>

#include "kernels/gpu/device.h"

namespace gdn::gpu {

inline constexpr int kMatrixTileRows = 16;
inline constexpr int kMatrixTileCols = 64;
inline constexpr int kMatrixTileThreads = 256;

inline int64_t MatrixTiles(int64_t batch, int64_t rows, int64_t cols) {
  return batch * ((rows + kMatrixTileRows - 1) / kMatrixTileRows) * ((cols + kMatrixTileCols - 1) / kMatrixTileCols);
}

// Calls function(batch, row, col) for each element of this thread in its block's tile; blockIdx.x is the tile's number,
// below MatrixTiles. `rows` and `cols` are each matrix's; elements outside are skipped.
template <typename Function>
__device__ __forceinline__ void ForEachElement(int64_t rows, int64_t cols, const Function& function) {
  const int64_t tiles_down = (rows + kMatrixTileRows - 1) / kMatrixTileRows;
  const int64_t tiles_across = (cols + kMatrixTileCols - 1) / kMatrixTileCols;
  const int64_t tile = blockIdx.x;
  const int64_t batch = tile / (tiles_down * tiles_across);
  const int64_t in_matrix = tile % (tiles_down * tiles_across);
  const int64_t col = in_matrix % tiles_across * kMatrixTileCols + threadIdx.x % kMatrixTileCols;
  const int64_t first_row = in_matrix / tiles_across * kMatrixTileRows + threadIdx.x / kMatrixTileCols;
  constexpr int kRowsAtOnce = kMatrixTileThreads / kMatrixTileCols;
  for (int i = 0; i < kMatrixTileRows; i += kRowsAtOnce) {
    if (first_row + i < rows && col < cols) function(batch, first_row + i, col);
  }
}

}  // namespace gdn::gpu
