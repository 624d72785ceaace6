// Functions of int8 products on the CPU, by the number of rows: tiles of outputs for many rows, streams for few.
//
// Params must be validated, not empty, and have weights that take int8 inputs.
// Both kernels add up in one order, so a result's bits do not depend on which of them computed it. They take blocks of
// 32 features in order. A block's int32 sums of products are converted to float32 and scaled. The block's sum is then
// multiplied by the scale of x and added to the output's float32 sum.
// Thread safety: free functions on the caller's memory. Ownership: none.
//
//   RoundInt8Tiles(params, 0, params.rows, packed);
//   ProjectInt8Tile(params, packed, /*first=*/0, params.rows, output, sums, scratch);
#pragma once

#include <cstdint>

#include "kernels/projection/projection.h"

namespace gdn {

inline constexpr int64_t kInt8TileOutputs = 32;
// Rows of x may be divided at multiples of this.
inline constexpr int64_t kInt8TileRows = 12;

// Returns the floats of a copy of x for ProjectInt8Tile, and of its scratch.
int64_t Int8TilesFloats(const ProjectionParams& params);
int64_t Int8TileScratchFloats();
// Rounds rows [begin, end) of x into the copy; both are multiples of kInt8TileRows or the last row's end.
void RoundInt8Tiles(const ProjectionParams& params, int64_t begin, int64_t end, float* packed);
// Computes outputs [output, output + kInt8TileOutputs) of rows [begin, end). Output o of row r goes to
// sums[(r - begin) * kInt8TileOutputs + o - output]. Those past the last output have no defined value.
void ProjectInt8Tile(const ProjectionParams& params, const float* packed, int64_t begin, int64_t end, int64_t output,
                     float* sums, float* scratch);

// Returns the most rows (inclusive) for which streams are faster than tiles; 0 if there are no streams. It depends on
// the weights' format.
int64_t MostInt8StreamedRows(const ProjectionParams& params);
// Returns the floats of a copy of x for ProjectInt8Streams.
int64_t Int8StreamsFloats(const ProjectionParams& params);
// Rounds all rows of x into the copy.
void RoundInt8Streams(const ProjectionParams& params, float* packed);
// Computes outputs [begin, end) of all rows, reading the weights as kQuantizedStreams streams of equal length.
// Output o of row r goes to y[r * y_stride + o - begin].
void ProjectInt8Streams(const ProjectionParams& params, const float* packed, int64_t begin, int64_t end, float* y,
                        int64_t y_stride);

}  // namespace gdn
