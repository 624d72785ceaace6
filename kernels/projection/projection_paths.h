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

// Widens `count` BF16 or F16 elements, exactly.
void WidenToFloat(DType dtype, const void* src, int64_t count, float* dst);

// Converts rows [first, first + count) of a matrix of any format to float32.
void WidenWeightRows(const WeightMatrix& weight, int64_t first, int64_t count, float* out);

// True if a quantised matrix is decoded in registers: for few rows (at most two to four, by instruction set). For more,
// some of its rows at a time are decoded into memory that fits a core's cache.
bool TakesFewQuantizedRows(const WeightMatrix& weight, int64_t rows);
// Number of equal-length streams in which ProjectFewQuantizedRows reads the weights.
inline constexpr int kFewQuantizedStreams = 4;
// Computes outputs [begin, end) of each row r to y + r * y_stride. x is packed: for each vector of the instruction set,
// the same columns of every row.
void ProjectFewQuantizedRows(const WeightMatrix& weight, int64_t rows, const float* packed, int64_t begin, int64_t end,
                             float* y, int64_t y_stride);

// Converts outputs [begin, end) of every row, `stride` floats apart at `sums`, to y's dtype and stores them.
void NarrowRows(const ProjectionParams& params, const float* sums, int64_t stride, int64_t begin, int64_t end);

// Computes the projection with oneDNN's single-threaded sgemm over fixed tiles of output features, which `pool`
// divides. RESOURCE_EXHAUSTED or INTERNAL if oneDNN fails.
absl::Status ProjectSequenceGemm(const ProjectionParams& params, ThreadPool& pool);

// Number of rows up to which kSequenceGemm computes row by row, so that a row's bits do not depend on it.
int64_t SequenceGemmStableRows();

// Names what the GEMM's bits depend on besides its arguments: "dnnl2.6.3-isa3f".
std::string SequenceGemmId();

}  // namespace gdn
