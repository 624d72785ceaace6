// The parts of ProjectionCpu: the GEMM, quantised weights, and the SIMD functions that these need. Params must be
// validated and not empty.
//
// Thread safety: as ProjectionCpu. Ownership: none.
//
//   GDN_RETURN_IF_ERROR(ProjectSequenceGemm(params, pool));
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/threads/thread_pool.h"
#include "kernels/projection/projection.h"

namespace gdn {

// Converts `count` BF16 or F16 (`dtype`) elements of `src` to float32, exactly.
void WidenToFloat(DType dtype, const void* src, int64_t count, float* dst);

// Converts rows [first, first + count) of a matrix of any format to float32 in `out`, dense [count, weight.cols].
void WidenWeightRows(const WeightMatrix& weight, int64_t first, int64_t count, float* out);

// True if the matrix is quantised, has whole runs of 32 columns, and for `rows` rows of x it is faster to decode it in
// registers, once for every QuantizedTileRows() of them. Other quantised matrices are decoded some rows at a time into
// memory that fits a core's cache.
bool DecodesInRegisters(const WeightMatrix& weight, int64_t rows);
// Most outputs of a task whose weights are not decoded in registers: of 2048 float32 features some 1 MB. A multiple of
// the outputs of every instruction set's tiles.
inline constexpr int64_t kMostOutputsPerTask = 144;
// Returns the outputs of such a task: few of a decode, whose rows pass once anyway, and never so many that threads are
// left without tasks.
int64_t OutputsPerTask(int64_t rows, int64_t outputs, int threads);
// Number of equal-length streams in which ProjectQuantizedRows reads the weights.
inline constexpr int kQuantizedStreams = 4;
// Computes outputs [begin, end) of each of `rows` rows of x, DecodesInRegisters being true for them. Output o of row
// r goes to y[r * y_stride + o - begin]. `packed` is x in tiles of QuantizedTileRows() rows; in one, for each vector of
// the instruction set, the same columns of every row.
void ProjectQuantizedRows(const WeightMatrix& weight, int64_t rows, const float* packed, int64_t begin, int64_t end,
                          float* y, int64_t y_stride);

// Converts outputs [begin, end) of every row to y's dtype and stores them in params.y. Output o of row r is sums[r *
// stride + o - begin].
void NarrowRows(const ProjectionParams& params, const float* sums, int64_t stride, int64_t begin, int64_t end);

// Computes a projection whose inputs are rounded to int8 (TakesInt8Inputs), on both paths. RESOURCE_EXHAUSTED if memory
// is short; y is then untouched.
absl::Status ProjectInt8(const ProjectionParams& params, ThreadPool& pool);
// Returns the floats that ProjectInt8 with a pool of `threads` threads takes from a ScratchArena.
int64_t Int8ScratchFloats(const ProjectionParams& params, int threads);

// Outputs of a task that reads quantised weights as kQuantizedStreams streams.
int64_t StreamedOutputs(const WeightMatrix& weight, int threads);

// Computes the projection with oneDNN's single-threaded sgemm over fixed tiles of output features, which `pool`
// divides, and returns when done. RESOURCE_EXHAUSTED if memory is short, INTERNAL if oneDNN fails otherwise; y is then
// undefined.
absl::Status ProjectSequenceGemm(const ProjectionParams& params, ThreadPool& pool);

// Returns the most rows (inclusive) for which kSequenceGemm computes as kRowStable, so that a row's bits do not depend
// on their number.
int64_t SequenceGemmStableRows();

// Returns a name of what the GEMM's bits depend on besides its arguments, oneDNN's version and instruction set:
// "dnnl2.6.3-isa3f".
std::string SequenceGemmId();

}  // namespace gdn
