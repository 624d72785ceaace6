// Values as sums of bfloat16 terms, for matrix units: a projection's order of sums there, and its kernels.
//
// A float32 is the sum of three bfloat16 terms, of 8 significant bits each, and exactly so from 2^-110 up. Below that,
// the sum errs by up to 2^-134. BF16 values are one term. A value that is not finite is its last term, and the others
// are zero. So an infinity of x times a finite weight stays one, or is NaN if x is BF16 and the weights are not. An
// infinite weight may give NaN.
// Order of a sum: features are divided into groups of kGroupFeatures. A group's sum starts from zero, in the matrix
// unit's accumulator. The products of x's term i and W's term j are added in the order (2, 0), (1, 1), (0, 2), (1, 0),
// (0, 1), (0, 0), small ones first; each for the whole group, 16 features at a time. Products of smaller terms, below
// 2^-23 of the whole, are left out. Then the groups' sums are added first to last by float32 additions, starting from
// zero: accumulators truncate, which must not add up. On the path kRowStable, the groups of each kPartFeatures features
// are added so, and then the parts' sums likewise: a decode has few tiles, and blocks compute parts at the same time.
// Nothing else (rows in the call, tile, grid, dtype, alignment) influences a sum, because zero terms change nothing.
//
// Thread safety: plain values and free functions. Ownership: the caller's memory. For projection_*_gpu.hip only.
//
//   if (UsesMatrixUnits(params, stream)) return LaunchOnMatrixUnits(all_params, workspace, stream);
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/weight_format.h"
#include "kernels/gpu/stream.h"
#include "kernels/projection/packed_weights_gpu.h"
#include "kernels/projection/projection.h"

namespace gdn::gpu {

inline constexpr int32_t kPartFeatures = 1024;
inline constexpr int64_t kMostPartSums = int64_t{4} << 20;  // floats, of a launch

// A matrix in device memory as `terms` matrices of bfloat16, the largest term first.
struct Bf16Terms {
  const uint16_t* data = nullptr;  // 16-byte aligned
  uint32_t stride = 0;             // elements from row to row, a multiple of 8; zeros follow the last feature up to one
  int64_t plane = 0;               // elements from term to term
  int terms = 1;                   // 1 or 3
};

// The rows of a matrix of any format, to be split into terms.
struct RowsToSplit {
  const void* data = nullptr;
  WeightFormat format = WeightFormat::kF32;
  int64_t stride = 0;  // elements from row to row; of plain formats
  int64_t first = 0;
  int64_t rows = 0;
  int32_t features = 0;
  const float* fp8_scales = nullptr;
};

constexpr uint32_t TermsStride(int64_t features) { return static_cast<uint32_t>((features + 7) / 8 * 8); }
constexpr int TermsOf(WeightFormat format) { return format == WeightFormat::kBF16 ? 1 : 3; }

// Returns the floats that a row's terms take.
constexpr int64_t FloatsOfTerms(WeightFormat format, int64_t features) {
  return int64_t{TermsOf(format)} * TermsStride(features) / 2;
}

// Writes the terms of rows [first, first + rows) to `to`, rows * FloatsOfTerms floats, 16-byte aligned. In the result,
// row `first` has number 0.
absl::StatusOr<Bf16Terms> LaunchSplit(const RowsToSplit& rows, float* to, const Stream& stream);

// Launches y = x W^T for params as for MakeProjectionArgs, on matrix units. x and each weight.data are terms; x.data
// and `w` say where. Formats, dtypes and strides of x and of the weights in `params` do not matter. w.data is null if
// no kernel on the stream writes the weights: the kernel may read them early. `part_sums`: PartSumsFloats floats, or
// null. Blocks of a tile do not share its parts then.
absl::Status LaunchTermsGemm(absl::Span<const ProjectionParams> params, const Bf16Terms& x, const Bf16Terms& w,
                             float* part_sums, const Stream& stream);
// Returns the floats in which the blocks of a call with weights of one term keep sums of parts, at most kMostPartSums.
int64_t PartSumsFloats(absl::Span<const ProjectionParams> params, int x_terms, const Stream& stream);
// The same for rows that AreFewTerms and weights of one term, which no kernel writes.
absl::Status LaunchFewTerms(absl::Span<const ProjectionParams> params, const Bf16Terms& x, const Stream& stream);
bool AreFewTerms(int64_t rows);

// True if LaunchOnMatrixUnits computes the projection: with BF16 weights, and with others on the path kSequenceGemm;
// unless its inputs are rounded to int8 or fp16, its weights lie as fp16 numbers, or it has very many features.
bool UsesMatrixUnits(const ProjectionParams& params, const Stream& stream);
// Computes validated projections on the same rows of x, all of which UsesMatrixUnits. `workspace`: TermsFloats floats.
absl::Status LaunchOnMatrixUnits(absl::Span<const ProjectionParams> params, float* workspace, const Stream& stream);
// Returns the floats of workspace for them, at most 64 MiB.
int64_t TermsFloats(absl::Span<const ProjectionParams> params, const Stream& stream);

}  // namespace gdn::gpu
