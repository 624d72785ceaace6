// What ProjectionCpu is made of: the GEMM, quantised weights, and what these need of the SIMD code. Params are
// validated and not empty.
//
// Thread safety: as ProjectionCpu. Ownership: none.
//
//   GDN_RETURN_IF_ERROR(ProjectSequenceGemm(params, pool));
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/thread_pool.h"
#include "kernels/projection/projection.h"

namespace gdn {

// Widens `count` BF16 or F16 elements, exactly.
void WidenToFloat(DType dtype, const void* src, int64_t count, float* dst);

// Rows [first, first + count) of a matrix of any format as float32.
void WidenWeightRows(const WeightMatrix& weight, int64_t first, int64_t count, float* out);

// For few rows (two to four, by the instruction set) a quantised matrix is decoded in registers; for more of them, some
// of its rows at a time into memory that stays in a core's cache.
bool TakesFewQuantizedRows(const WeightMatrix& weight, int64_t rows);
// Number of equal-length streams in which ProjectFewQuantizedRows reads the weights.
inline constexpr int kFewQuantizedStreams = 4;
// Outputs [begin, end), row r's to y + r * y_stride. x is packed: vector by vector of the instruction set, the same
// columns of each row.
void ProjectFewQuantizedRows(const WeightMatrix& weight, int64_t rows, const float* packed, int64_t begin, int64_t end,
                             float* y, int64_t y_stride);

// Writes outputs [begin, end) of every row, `stride` floats apart at `sums`, to y in its dtype.
void NarrowRows(const ProjectionParams& params, const float* sums, int64_t stride, int64_t begin, int64_t end);

// oneDNN's single-threaded sgemm over fixed tiles of output features. RESOURCE_EXHAUSTED or INTERNAL where oneDNN
// fails.
absl::Status ProjectSequenceGemm(const ProjectionParams& params, ThreadPool& pool);

// Up to so many rows kSequenceGemm is computed row by row, and a row's bits do not follow their number.
int64_t SequenceGemmStableRows();

// What the GEMM's bits depend on beside its arguments: "dnnl2.6.3-isa3f".
std::string SequenceGemmId();

}  // namespace gdn
