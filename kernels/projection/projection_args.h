// Arguments of a projection's GPU kernels, for up to four matrices on the same rows of x, and the order of sums that
// all of them keep but those on matrix units (bf16_terms_gpu.h).
//
// Order of a sum: features are divided into groups of kGroupFeatures. A group's products are added first to last by
// multiply-adds, starting from zero; then the groups' sums are added first to last, starting from zero. Nothing else
// (rows in the call, path, kernel, tile, wave, grid, dtype, alignment) influences it. One running sum over thousands of
// features would err by 1e-6.
// With kInt8 (base/product_math.h) and integer weights, a group's sum is made block by block of kInt8Block features:
// starting from zero, the multiply-add of the block's scale of x and of p. p has the weights' scales and offsets; its
// order is that of integer_weights_gpu-inl.h. The products of integers are exact. So are their sums.
// With TakesHalves, a group's sum is made pair by pair of features by Dot2 (kernels/gpu/dot2.h), starting from zero. It
// is multiplied by the inverse of the group's scale of x, and the sum of groups by the inverse of the output's scale.
// Between the two, sums are divided by 2^kHalfSumExponent.
// With TakesHalves and integer weights, a group's sum is made block by block of kHalfBlock features, starting from
// zero: the multiply-add of the block's scale and the sum of its products, which Dot2 makes pair by pair from zero;
// then, if the format has offsets, the multiply-add of the offset and HalfSumOf x. The group's sum is multiplied by the
// inverse of its scale of x. So with offsets, an infinity in x may make a NaN, where float32's products keep it.
//
// Thread safety: plain values. Ownership: none. For projection_*_gpu.hip only.
//
//   const ProjectionArgs args = MakeProjectionArgs(params, /*rows_per_tile=*/32, /*outputs_per_tile=*/64);
//   return Launch("projection_tiles", kernel, {args.tiles()}, kThreads, stream, args);
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/weight_format.h"
#include "kernels/gpu/device.h"
#include "kernels/gpu/stream.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/packed_weights_gpu.h"
#include "kernels/projection/projection.h"
#include "kernels/projection/rounded_rows_gpu.h"

namespace gdn::gpu {

inline constexpr int kGroupFeatures = 64;

// Divides numbers by multiplication, because a GPU has no instruction for it.
struct Divisor {
  uint32_t divisor, factor;  // 2^32 / divisor, rounded up; 0 for 1

  // True if quotients of all numbers up to `most` are right.
  static bool Divides(int64_t most, int64_t divisor) { return most <= (int64_t{1} << 32) / divisor - 1; }
  static Divisor Of(uint32_t divisor) {
    return {divisor, static_cast<uint32_t>(((uint64_t{1} << 32) + divisor - 1) / divisor)};
  }
  __device__ __forceinline__ uint32_t Quotient(uint32_t number) const {
    return factor == 0 ? number : static_cast<uint32_t>(uint64_t{number} * factor >> 32);
  }
};

struct ProjectionMatrix {
  const void* weight;
  void* y;
  int64_t y_stride;
  int32_t outputs;     // rows of the weight matrix
  int32_t first_tile;  // number of its first tile of outputs in the launch
  DType y_dtype;
  const float* scales;  // WeightMatrix::scales
};

struct ProjectionArgs {
  ProjectionMatrix matrices[kMaxProjectionsPerLaunch];  // unused ones at the end have first_tile == output_tiles
  const void* x;
  int64_t x_stride;
  int64_t rows;
  int32_t features;
  int32_t row_tiles;
  int32_t output_tiles;
  DType x_dtype;
  WeightFormat format;
  PackedPlanes planes;  // for quantised weights
  RoundedRows halves;   // x of LaunchHalfTiles
  // Set by LaunchTiles if blocks share tiles: sums of a tile's rounds so far, and Stream::counters.
  float* totals;
  uint32_t* counters;
  Divisor by_tiles, by_row_tiles;  // tiles() and row_tiles

  int64_t tiles() const { return int64_t{row_tiles} * output_tiles; }
};

// Returns the matrix of tile `tile`.
[[maybe_unused]] __device__ __forceinline__ ProjectionMatrix MatrixOfTile(const ProjectionArgs& p, int32_t tile) {
  ProjectionMatrix m = p.matrices[0];
#pragma unroll
  for (int i = 1; i < kMaxProjectionsPerLaunch; ++i) {
    if (tile >= p.matrices[i].first_tile) m = p.matrices[i];
  }
  return m;
}

// Returns the number of tiles of outputs of all matrices together; a tile belongs to one matrix.
inline int64_t OutputTiles(absl::Span<const ProjectionParams> params, int64_t outputs_per_tile) {
  int64_t tiles = 0;
  for (const ProjectionParams& p : params) tiles += (p.weight.rows + outputs_per_tile - 1) / outputs_per_tile;
  return tiles;
}

// Makes the arguments of one launch. All params, at most kMaxProjectionsPerLaunch, must be validated, have rows, and
// share x, its dtype and stride, the rows, the features and the weight format. Matrices without outputs are left out.
ProjectionArgs MakeProjectionArgs(absl::Span<const ProjectionParams> params, int32_t rows_per_tile,
                                  int32_t outputs_per_tile);

// True if the rows of all weights allow aligned 16-byte loads and have a multiple of 8 features, and those of x allow
// aligned loads of four elements.
bool AllowsVectors(absl::Span<const ProjectionParams> params);

// A view of x's rows from `first_row` on, in which that row has number 0. It copies what it needs, because a pointer to
// a kernel's arguments would move them to scratch memory.
struct XRows {
  const void* data;
  int64_t first;  // index in `data` of row 0's first feature
  int64_t stride;
  int32_t rows;  // number of rows left, at most 2^31 - 1
  int32_t features;
  DType dtype;

  __device__ __forceinline__ XRows(const ProjectionArgs& p, int64_t first_row)
      : data(p.x),
        first(first_row * p.x_stride),
        stride(p.x_stride),
        rows(p.rows - first_row < 0x7fffffff ? static_cast<int32_t>(p.rows - first_row) : 0x7fffffff),
        features(p.features),
        dtype(p.x_dtype) {}
  // Returns the raw features [f, f + 4) of row `row`, for Widen; zeros past the last feature or row. kVector:
  // AllowsVectors is true, and f a multiple of 4.
  template <bool kVector>
  __device__ __forceinline__ Vec4 Load(int32_t row, int32_t f) const {
    return LoadRaw4(data, dtype, first + row * stride + f, row < rows ? features - f : 0, kVector);
  }
  __device__ __forceinline__ Vec4 Widen(const Vec4& raw) const { return WidenRaw4(raw, dtype); }
};

// Most rows of x (inclusive) for which LaunchFewRows and its siblings are used; for more, others are faster.
inline constexpr int64_t kFewRows = 8;

// Launch the kernels for 1 to kFewRows rows (LaunchFewRows.., by weight format) and for any number of rows and any
// format (LaunchTiles). `params` must be as for MakeProjectionArgs. LaunchFewRows takes plain weights,
// LaunchFewRowsOfBlocks32 Q8_0, Q4_0 and E4M3, ..OfFifths Q4_1, Q5_0 and Q5_1, ..OfBlocks256 Q4_K, Q5_K and Q6_K,
// ..OfTwoBits Q2_K and Q3_K, ..OfIq the formats IQ.
absl::Status LaunchFewRows(absl::Span<const ProjectionParams> params, const Stream& stream);
absl::Status LaunchFewRowsOfBlocks32(absl::Span<const ProjectionParams> params, const Stream& stream);
absl::Status LaunchFewRowsOfFifths(absl::Span<const ProjectionParams> params, const Stream& stream);
absl::Status LaunchFewRowsOfBlocks256(absl::Span<const ProjectionParams> params, const Stream& stream);
absl::Status LaunchFewRowsOfTwoBits(absl::Span<const ProjectionParams> params, const Stream& stream);
absl::Status LaunchFewRowsOfIq(absl::Span<const ProjectionParams> params, const Stream& stream);
absl::Status LaunchTiles(absl::Span<const ProjectionParams> params, float* totals, const Stream& stream);
// Launch the kernels of x rounded to int8, by weight format as above, for params that TakesInt8Inputs: for 1 to
// kFewRows rows, and for any number of rows. `x` are the params' rows, rounded by LaunchRoundRows.
absl::Status LaunchFewInt8RowsOfBlocks32(absl::Span<const ProjectionParams> params, const Stream& stream);
absl::Status LaunchFewInt8RowsOfFifths(absl::Span<const ProjectionParams> params, const Stream& stream);
absl::Status LaunchFewInt8RowsOfBlocks256(absl::Span<const ProjectionParams> params, const Stream& stream);
absl::Status LaunchFewInt8RowsOfTwoBits(absl::Span<const ProjectionParams> params, const Stream& stream);
absl::Status LaunchFewInt8RowsOfIq(absl::Span<const ProjectionParams> params, const Stream& stream);
absl::Status LaunchInt8TilesOfBlocks32(absl::Span<const ProjectionParams> params, const RoundedRows& x,
                                       const Stream& stream);
absl::Status LaunchInt8TilesOfFifths(absl::Span<const ProjectionParams> params, const RoundedRows& x,
                                     const Stream& stream);
absl::Status LaunchInt8TilesOfBlocks256(absl::Span<const ProjectionParams> params, const RoundedRows& x,
                                        const Stream& stream);
absl::Status LaunchInt8TilesOfTwoBits(absl::Span<const ProjectionParams> params, const RoundedRows& x,
                                      const Stream& stream);
absl::Status LaunchInt8TilesOfIq(absl::Span<const ProjectionParams> params, const RoundedRows& x, const Stream& stream);
// Launch the kernels of products of fp16 numbers, for params that TakesHalves: for 1 to kFewRows rows, and for any
// number of rows. `x` are the params' rows, rounded by LaunchHalveRows.
absl::Status LaunchFewHalfRows(absl::Span<const ProjectionParams> params, const Stream& stream);    // plain weights
absl::Status LaunchFewHalfBlocks(absl::Span<const ProjectionParams> params, const Stream& stream);  // integers
absl::Status LaunchHalfTiles(absl::Span<const ProjectionParams> params, const RoundedRows& x, const Stream& stream);
// Returns the floats of `totals`, with which blocks of LaunchTiles may share tiles; 0 if they shall not: `totals` is
// null then. `outputs`: of all `matrices` of the call together.
int64_t TotalsFloats(int64_t rows, int64_t outputs, int32_t matrices, const Stream& stream);
// Launches the GEMM kernel, for params as for MakeProjectionArgs. Call only if GemmFillsDevice is true: waves of 32,
// AllowsVectors, and enough tiles to fill the device.
absl::Status LaunchGemm(absl::Span<const ProjectionParams> params, const Stream& stream);
bool GemmFillsDevice(absl::Span<const ProjectionParams> params, const Stream& stream);

}  // namespace gdn::gpu
