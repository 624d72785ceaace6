// y = x W^T: the layer's in- and out-projections.
//
// Thread safety: any number of calls at a time (the thread pool permitting). Ownership: none.
// There are two paths, whose orders of summation may differ, so the caller chooses one:
//   kRowStable     few rows, bound by reading W: decode. Each output is summed over the features in one fixed order for
//                  any number of rows, so batching cannot change a bit.
//   kSequenceGemm  the rows of one sequence's prefill. On the CPU a library's GEMM, whose order may depend on how many
//                  rows there are. On the GPU the order is one for any number of rows: that of bf16_terms_gpu.h if the
//                  stream has matrix units, else kRowStable's.
// Sums are float32. BF16 and F16 inputs and weights are widened exactly, outputs are rounded to nearest even. In exact
// products (base/product_math.h) of float32 numbers quantised weights give the same bits as the float32 matrix of their
// values. With kInt8, GGUF's weights meet a rounded x; on both paths the order of a sum is then one for any number of
// rows. With kHalf, a GPU rounds x and plain weights to fp16; a CPU multiplies exactly. A GPU may multiply fp16 numbers
// in exact products too (TakesHalves): the matrix, x's dtype, and what the device has proven decide, never the number
// of rows.
//
//   ProjectionParams p{.path = ProjectionPath::kRowStable, .rows = b, .x = x, .x_stride = d, .weight = w, .y = y, ...};
//   GDN_RETURN_IF_ERROR(backend.Projection(p));
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/product_math.h"
#include "base/threads/thread_pool.h"
#include "base/weight_format.h"
#include "kernels/common/typed_tensor.h"
#include "kernels/gpu/stream.h"

namespace gdn {

// A row-major [rows, cols] matrix in backend memory, not owned: rows are output features, cols input features.
// Quantised ones, and plain ones with scales, are laid out by Backend::CopyWeightsIn, on a GPU in an order of its own
// (packed_weights_gpu.h). Without rows, the other fields do not matter.
struct WeightMatrix {
  WeightFormat format = WeightFormat::kF32;
  const void* data = nullptr;  // aligned to AlignmentOf(format), or to 16 if a GPU packs it
  int64_t rows = 0;
  int64_t cols = 0;  // a multiple of BlockOf(format).weights
  // kF8E4M3: [Fp8Blocks(rows), Fp8Blocks(cols)], one per 128 x 128 weights. Plain formats: [rows] powers of two from
  // RowScalesOf (of the call's math), which products of fp16 numbers need (TakesHalves), or null. Other formats: null.
  // The weights lie as fp16 numbers then: times these.
  const float* scales = nullptr;
  // Formats that HasHalfProducts: true if a GPU multiplies their integers as fp16 numbers (TakesHalves).
  bool integer_halves = false;
};

constexpr WeightMatrix PlainMatrix(DType dtype, const void* data, int64_t rows, int64_t cols) {
  return {.format = FormatOf(dtype), .data = data, .rows = rows, .cols = cols};
}

enum class ProjectionPath : uint8_t { kRowStable, kSequenceGemm };

struct ProjectionParams {
  ProjectionPath path = ProjectionPath::kRowStable;
  ProductMath math = ProductMath::kExact;
  int64_t rows = 0;
  InputTensor x = {};  // [rows, weight.cols], x_stride elements from row to row
  int64_t x_stride = 0;
  // x as an operator before has split it (GatedRmsNormParams::terms), 16-byte aligned, of a call that
  // Backend::TakesTerms; x is not read.
  const uint16_t* x_terms = nullptr;
  WeightMatrix weight;
  OutputTensor y = {};  // [rows, weight.rows], y_stride elements from row to row
  int64_t y_stride = 0;
};

// True if a GPU has the matrix as fp16 numbers, whatever its format.
inline bool LiesAsHalves(const WeightMatrix& weight) { return IsPlain(weight.format) && weight.scales != nullptr; }

// True if a GPU multiplies x and the weights as fp16 numbers times powers of two, as base/product_math.h says.
inline bool TakesHalves(const ProjectionParams& params) {
  const bool exact = params.math == ProductMath::kExact && params.x.dtype != DType::kF32;
  const WeightMatrix& weight = params.weight;
  const bool halves = LiesAsHalves(weight) || (weight.integer_halves && HasHalfProducts(weight.format));
  return (params.math == ProductMath::kHalf || exact) && weight.rows > 0 && halves;
}

absl::Status ValidateProjection(const ProjectionParams& params);

// Returns the scale of each row of a plain matrix in host memory, for WeightMatrix::scales. Returns none if a matrix
// for exact products has a row whose elements are not AreScaledHalves: for example magnitudes more than 2^28 apart.
std::vector<float> RowScalesOf(const WeightMatrix& weight, ProductMath math);

// Writes row `row` of a matrix in host memory and in its file's layout to `out` [cols], as float32.
void WeightRow(const WeightMatrix& weight, int64_t row, float* out);

// Reference for params in host memory and weights in their file's layout: double-precision sums over the weights'
// float32 values and x, rounded as params.math says (in kHalf if plain weights have scales). The params must be valid.
void ProjectionReference(const ProjectionParams& params);

// Computes on the threads of `pool` and returns when done; params must be valid. kRowStable: one SIMD accumulator over
// the features in order, then one fixed reduction; bits depend only on x's row and W's row. kSequenceGemm is the same
// up to SequenceGemmStableRows() rows. Inputs that are rounded to int8 have one order on both paths (int8_functions.h).
// RESOURCE_EXHAUSTED if there is no memory for a copy of x.
absl::Status ProjectionCpu(const ProjectionParams& params, ThreadPool& pool);
// Returns the floats that a call with a pool of `threads` threads takes from a ScratchArena; 0 for a GEMM, which serves
// only prefills and allocates its own memory.
int64_t ScratchFloats(const ProjectionParams& params, int threads);

// Issues the projection on `stream`. Sums have the order of projection_args.h or, on matrix units for kSequenceGemm and
// for BF16 weights, of bf16_terms_gpu.h. `workspace` is GpuWorkspaceFloats floats of device memory, 16-byte aligned,
// and is overwritten. It is null if that is 0. The params must have passed ValidateProjection. INVALID_ARGUMENT for
// sizes and addresses that only a GPU cannot take.
absl::Status ProjectionGpu(const ProjectionParams& params, float* workspace, const gpu::Stream& stream);
// Backend::TakesTerms.
bool TakesTermsGpu(const ProjectionParams& params, const gpu::Stream& stream);
// Issues 1 to kMaxProjectionsPerLaunch matrices on the same rows of x in one launch, or one launch for each run of
// neighbours with the same weight format. Checks all params (ValidateProjection too): INVALID_ARGUMENT also if x, its
// stride, rows, path or input features differ.
inline constexpr int kMaxProjectionsPerLaunch = 4;
absl::Status ProjectionsGpu(absl::Span<const ProjectionParams> params, float* workspace, const gpu::Stream& stream);
// Returns the floats of workspace that a call needs, at most 64 MiB: rounded rows of x, or its bfloat16 terms. Invalid
// params get any number up to that.
int64_t GpuWorkspaceFloats(const ProjectionParams& params, const gpu::Stream& stream);
int64_t GpuWorkspaceFloats(absl::Span<const ProjectionParams> params, const gpu::Stream& stream);

}  // namespace gdn
