// Functions for quantised weights on the CPU, by the size of a format's blocks; E4M3 counts as blocks of 32.
//
// Thread safety: free functions on the caller's memory. Ownership: none.
//
//   if (BlockOf(weight.format).weights == 256) DequantizeBlocks256Rows(weight, first, count, out);
#pragma once

#include <cstdint>

#include "kernels/projection/projection.h"

namespace gdn {

// Convert rows [first, first + count) to float32, dense in `out`. Columns must be whole runs of 32.
void DequantizeBlocks32Rows(const WeightMatrix& weight, int64_t first, int64_t count, float* out);
void DequantizeBlocks256Rows(const WeightMatrix& weight, int64_t first, int64_t count, float* out);

// Returns the rows of x for which a weight is decoded once, 2 or 4: as many as this processor's registers hold.
int64_t QuantizedTileRows();

// Compute ProjectQuantizedRows of projection_paths.h.
void ProjectRowsOfBlocks32(const WeightMatrix& weight, int64_t rows, const float* x, int64_t begin, int64_t end,
                           float* y, int64_t y_stride);
void ProjectRowsOfBlocks256(const WeightMatrix& weight, int64_t rows, const float* x, int64_t begin, int64_t end,
                            float* y, int64_t y_stride);

}  // namespace gdn
