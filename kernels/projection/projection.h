// y = x W^T: the layer's in- and out-projections.
//
// Thread safety: any number of calls at a time (the thread pool permitting). Ownership: none.
// Two paths, whose orders of summation may differ, so the caller says which:
//   kRowStable     few rows, bound by reading W. Each output is summed over features in one fixed order, however
//                  many rows the call has: batching cannot change a bit. Decode.
//   kSequenceGemm  the rows of a prefill. On the CPU by a library's GEMM, whose order may follow the number of rows: of
//                  one sequence. On the GPU the order is kRowStable's.
// Sums are float32; BF16 and F16 inputs and weights are widened exactly, outputs rounded to nearest even. Quantised
// weights give the bits of the same call over the float32 matrix of their values.
//
//   ProjectionParams p{.path = ProjectionPath::kRowStable, .rows = b, .x = x, .x_stride = d, .weight = w, .y = y, ...};
//   GDN_RETURN_IF_ERROR(backend.Projection(p));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/thread_pool.h"
#include "base/weight_format.h"
#include "kernels/common/typed_tensor.h"
#include "kernels/gpu/stream.h"

namespace gdn {

// A row-major [rows, cols] matrix in backend memory: rows are output features, cols input features. Quantised ones lie
// as Backend::CopyWeightsIn puts them, which on a GPU is another order of the same bits (packed_weights_gpu.h).
struct WeightMatrix {
  WeightFormat format = WeightFormat::kF32;
  const void* data = nullptr;  // a multiple of AlignmentOf(format), on a GPU of 16 where that packs
  int64_t rows = 0;
  int64_t cols = 0;               // a multiple of BlockOf(format).weights
  const float* scales = nullptr;  // of kF8E4M3 alone: [Fp8Blocks(rows), Fp8Blocks(cols)]
};

constexpr WeightMatrix PlainMatrix(DType dtype, const void* data, int64_t rows, int64_t cols) {
  return {.format = FormatOf(dtype), .data = data, .rows = rows, .cols = cols};
}

enum class ProjectionPath : uint8_t { kRowStable, kSequenceGemm };

struct ProjectionParams {
  ProjectionPath path = ProjectionPath::kRowStable;
  int64_t rows = 0;
  InputTensor x = {};  // [rows, weight.cols], x_stride elements from row to row
  int64_t x_stride = 0;
  WeightMatrix weight;
  OutputTensor y = {};  // [rows, weight.rows], y_stride elements from row to row
  int64_t y_stride = 0;
};

absl::Status ValidateProjection(const ProjectionParams& params);

// UNIMPLEMENTED for quantised weights, of a backend that does not take them.
absl::Status RequirePlainWeights(const WeightMatrix& weight);

// A row of weights as float32, on host memory: `out` [cols].
void WeightRow(const WeightMatrix& weight, int64_t row, float* out);

// Double-precision sums on host memory, over the weights' float32 values.
void ProjectionReference(const ProjectionParams& params);

// kRowStable: one SIMD accumulator over the features in order, then one fixed reduction. Bits depend on x's row and W's
// row alone. kSequenceGemm is the same below a number of rows that is a constant of the instruction set.
// RESOURCE_EXHAUSTED where there is no memory for a copy of x.
absl::Status ProjectionCpu(const ProjectionParams& params, ThreadPool& pool);

// One to kMaxProjectionsPerLaunch matrices on the same rows of x, in one launch. INVALID_ARGUMENT where x, its stride,
// rows, the path or the number of input features differ between them. Weights of several dtypes take a launch each.
// Every sum has the one order of projection_args.h, on either path.
inline constexpr int kMaxProjectionsPerLaunch = 4;
absl::Status ProjectionsGpu(absl::Span<const ProjectionParams> params, const gpu::Stream& stream);

}  // namespace gdn
