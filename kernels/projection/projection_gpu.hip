// Projections on the GPU: which kernel, and the arguments of all.
//
// The kernels: projection_few_rows_gpu.hip, projection_tiles_gpu.hip, projection_gemm_gpu.hip; of x rounded to int8
// projection_few_quantised_gpu-inl.h and projection_int8_tiles_gpu-inl.h; on matrix units
// projection_matrix_units_gpu.hip.

#include <algorithm>
#include <cstddef>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"
#include "kernels/gpu/launch.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/bf16_terms_gpu.h"
#include "kernels/projection/projection.h"
#include "kernels/projection/projection_args.h"

namespace gdn {
namespace gpu {

ProjectionArgs MakeProjectionArgs(absl::Span<const ProjectionParams> params, int32_t rows_per_tile,
                                  int32_t outputs_per_tile) {
  const ProjectionParams& first = params[0];
  ProjectionArgs args{};
  args.x = first.x.data;
  args.x_dtype = first.x.dtype;
  args.x_stride = first.x_stride;
  args.rows = first.rows;
  args.row_tiles = static_cast<int32_t>(CeilDivide(first.rows, rows_per_tile));
  args.features = static_cast<int32_t>(first.weight.cols);
  args.format = first.weight.format;
  if (!IsPlain(args.format)) args.planes = PackedPlanesOf(args.format, first.weight.cols);
  size_t used = 0;
  for (const ProjectionParams& p : params) {
    if (p.weight.rows == 0) continue;
    args.matrices[used++] = {.weight = p.weight.data,
                             .y = p.y.data,
                             .y_stride = p.y_stride,
                             .outputs = static_cast<int32_t>(p.weight.rows),
                             .first_tile = args.output_tiles,
                             .y_dtype = p.y.dtype,
                             .scales = p.weight.scales};
    args.output_tiles += static_cast<int32_t>(CeilDivide(p.weight.rows, outputs_per_tile));
  }
  for (; used < kMaxProjectionsPerLaunch; ++used) args.matrices[used].first_tile = args.output_tiles;
  return args;
}

bool AllowsVectors(absl::Span<const ProjectionParams> params) {
  const ProjectionParams& first = params[0];
  if (first.weight.cols % 8 != 0 || !AllowsRaw4(first.x.data, first.x.dtype, first.x_stride)) return false;
  for (const ProjectionParams& p : params) {
    if (p.weight.rows > 0 && !Aligned16(p.weight.data)) return false;
  }
  return true;
}

namespace {

using LaunchesFew = absl::Status(absl::Span<const ProjectionParams> params, const Stream& stream);
using LaunchesTiles = absl::Status(absl::Span<const ProjectionParams> params, const RoundedRows& x,
                                   const Stream& stream);

// The launchers of a format; those of x rounded to int8 only for integer weights.
struct Launchers {
  LaunchesFew* few;
  LaunchesFew* few_int8;
  LaunchesTiles* tiles_int8;
};

Launchers LaunchersOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return {LaunchFewRows, nullptr, nullptr};
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_0:
    case WeightFormat::kQ5_1:
      return {LaunchFewRowsOfFifths, LaunchFewInt8RowsOfFifths, LaunchInt8TilesOfFifths};
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K:
    case WeightFormat::kQ6_K:
      return {LaunchFewRowsOfBlocks256, LaunchFewInt8RowsOfBlocks256, LaunchInt8TilesOfBlocks256};
    case WeightFormat::kQ2_K:
    case WeightFormat::kQ3_K:
      return {LaunchFewRowsOfTwoBits, LaunchFewInt8RowsOfTwoBits, LaunchInt8TilesOfTwoBits};
    case WeightFormat::kIQ4_NL:
    case WeightFormat::kIQ4_XS:
    case WeightFormat::kIQ3_S:
      return {LaunchFewRowsOfIq, LaunchFewInt8RowsOfIq, LaunchInt8TilesOfIq};
    default:
      return {LaunchFewRowsOfBlocks32, LaunchFewInt8RowsOfBlocks32, LaunchInt8TilesOfBlocks32};
  }
}

bool TakesInt8(const ProjectionParams& p) { return p.weight.rows > 0 && TakesInt8Inputs(p.math, p.weight.format); }

// All these kernels keep the same order of sums, so rows, outputs and the device may choose among them, whatever the
// path. `x`: rounded rows, if there are more than kFewRows and a matrix takes them. `totals`: TotalsFloats.
absl::Status LaunchFastest(absl::Span<const ProjectionParams> params, const RoundedRows& x, float* totals,
                           const Stream& stream) {
  const Launchers of_format = LaunchersOf(params[0].weight.format);
  const bool few = params[0].rows <= kFewRows;
  if (TakesHalves(params[0])) {
    if (!few) return LaunchHalfTiles(params, x, stream);
    return IsPlain(params[0].weight.format) ? LaunchFewHalfRows(params, stream) : LaunchFewHalfBlocks(params, stream);
  }
  if (TakesInt8(params[0])) return few ? of_format.few_int8(params, stream) : of_format.tiles_int8(params, x, stream);
  if (few) return of_format.few(params, stream);
  return GemmFillsDevice(params, stream) ? LaunchGemm(params, stream) : LaunchTiles(params, totals, stream);
}

// Neighbours that share a launch: those of one format and math.
size_t Alike(absl::Span<const ProjectionParams> params) {
  size_t count = 1;
  while (count < params.size() && params[count].weight.format == params[0].weight.format &&
         TakesInt8(params[count]) == TakesInt8(params[0]) && TakesHalves(params[count]) == TakesHalves(params[0]) &&
         LiesAsHalves(params[count].weight) == LiesAsHalves(params[0].weight)) {
    ++count;
  }
  return count;
}

// How the rows of a call are rounded ahead. All matrices share one math, so no call rounds in two ways.
enum class Rounding : uint8_t { kNone, kHalves, kInt8 };
Rounding RoundingOf(absl::Span<const ProjectionParams> params) {
  if (params.empty() || params[0].rows <= kFewRows) return Rounding::kNone;
  if (absl::c_any_of(params, TakesHalves)) return Rounding::kHalves;
  return absl::c_any_of(params, TakesInt8) ? Rounding::kInt8 : Rounding::kNone;
}

int64_t FloatsOf(Rounding rounding, int64_t rows, int64_t features) {
  return rounding == Rounding::kHalves ? HalfFloats(rows, features) : RoundedFloats(rows, features);
}

// Returns the most rows that a workspace of 64 MiB has space for, or kFewRows if it has none for more.
int64_t RoundedRowsAtOnce(Rounding rounding, int64_t features) {
  constexpr int64_t kMostFloats = int64_t{64} << 18;
  const int64_t rows = kMostFloats / FloatsOf(rounding, 4, features) * 4;
  return std::max(rows >= 128 ? rows / 128 * 128 : rows, kFewRows);  // whole tiles
}

}  // namespace
}  // namespace gpu

namespace {

constexpr char kProjectionsOp[] = "Projections";

absl::Status Mismatch(size_t index, absl::string_view field) {
  return InvalidField(kProjectionsOp, field, field, " of matrix ", index,
                      " differs from the first's; matrices of one call share x, rows, x_stride, path, math and cols");
}

// Checks limits of the kernels that ValidateProjection does not know. `index`: the number of the matrix in its call.
absl::Status ValidateOnGpu(size_t index, const ProjectionParams& params) {
  constexpr int64_t kMaxFeatures = 0x7fffffff;
  const WeightMatrix& weight = params.weight;
  if (weight.rows > kMaxFeatures || weight.cols > kMaxFeatures) return Mismatch(index, "weight");
  if (IsPlain(weight.format) || params.rows == 0 || weight.rows == 0) return absl::OkStatus();
  if (weight.cols > kMaxPackedFeatures) {
    return InvalidField(kProjectionsOp, "weight.cols", "weight.cols is ", weight.cols,
                        "; quantised weights have at most ", kMaxPackedFeatures, " columns on a GPU");
  }
  if (!gpu::Aligned16(weight.data)) {
    return InvalidField(
        kProjectionsOp, "weight.data",
        "weight.data is no multiple of 16, as quantised weights are that CopyWeightsIn has put in place");
  }
  return absl::OkStatus();
}

absl::Status ValidateTogether(absl::Span<const ProjectionParams> params) {
  if (params.empty() || params.size() > size_t{kMaxProjectionsPerLaunch}) {
    return InvalidField(kProjectionsOp, "params", params.size(), " matrices; expected 1 to ", kMaxProjectionsPerLaunch);
  }
  const ProjectionParams& first = params[0];
  for (size_t i = 0; i < params.size(); ++i) {
    const ProjectionParams& p = params[i];
    GDN_RETURN_IF_ERROR(ValidateProjection(p));
    GDN_RETURN_IF_ERROR(ValidateOnGpu(i, p));
    if (p.rows != first.rows) return Mismatch(i, "rows");
    if (p.x.data != first.x.data || p.x.dtype != first.x.dtype) return Mismatch(i, "x");
    if (p.x_terms != first.x_terms) return Mismatch(i, "x_terms");
    if (p.x_stride != first.x_stride) return Mismatch(i, "x_stride");
    if (p.path != first.path) return Mismatch(i, "path");
    if (p.math != first.math) return Mismatch(i, "math");
    if (p.weight.cols != first.weight.cols) return Mismatch(i, "weight.cols");
  }
  return absl::OkStatus();
}

absl::Status LaunchByFormat(absl::Span<const ProjectionParams> params, const gpu::RoundedRows& x, float* totals,
                            const gpu::Stream& stream) {
  while (!params.empty()) {
    const size_t count = gpu::Alike(params);
    GDN_RETURN_IF_ERROR(gpu::LaunchFastest(params.first(count), x, totals, stream));
    params.remove_prefix(count);
  }
  return absl::OkStatus();
}

// Launches rows [first, first + rows) of the params.
absl::Status LaunchRows(absl::Span<const ProjectionParams> params, gpu::Rounding rounding, int64_t first, int64_t rows,
                        float* workspace, float* totals, const gpu::Stream& stream) {
  absl::InlinedVector<ProjectionParams, kMaxProjectionsPerLaunch> part(params.begin(), params.end());
  for (ProjectionParams& p : part) {
    p.rows = rows;
    p.x = p.x.From(first * p.x_stride);
    if (p.weight.rows > 0) p.y = p.y.From(first * p.y_stride);
  }
  gpu::RoundedRows x;
  if (rows > gpu::kFewRows) {
    x = {workspace, gpu::PitchOf(rows)};
    const bool halves = rounding == gpu::Rounding::kHalves;
    GDN_RETURN_IF_ERROR(halves ? gpu::LaunchHalveRows(part[0], x, stream) : gpu::LaunchRoundRows(part[0], x, stream));
  }
  return LaunchByFormat(part, x, totals, stream);
}

// Returns the floats of rounded rows of x that LaunchOthers needs.
int64_t RoundedRowsFloats(absl::Span<const ProjectionParams> params) {
  const gpu::Rounding rounding = gpu::RoundingOf(params);
  if (rounding == gpu::Rounding::kNone) return 0;
  const int64_t features = params[0].weight.cols;
  const bool refused = rounding == gpu::Rounding::kInt8 ? features < kInt8Block || features > kMaxPackedFeatures
                                                        : features < 1 || features > 0x7fffffff;
  if (refused) return 0;  // later
  const int64_t at_once = gpu::RoundedRowsAtOnce(rounding, features);
  return at_once > gpu::kFewRows ? gpu::FloatsOf(rounding, std::min(at_once, params[0].rows), features) : 0;
}

int64_t TotalsFloats(absl::Span<const ProjectionParams> params, const gpu::Stream& stream) {
  int64_t outputs = 0;
  int32_t matrices = 0;
  for (const ProjectionParams& p : params) {
    if (!IsPlain(p.weight.format) || TakesHalves(p)) continue;
    if (p.weight.rows <= 0 || p.weight.rows > 0x7fffffff) continue;  // refused later
    outputs += p.weight.rows;
    ++matrices;
  }
  return matrices == 0 ? 0 : gpu::TotalsFloats(params[0].rows, outputs, matrices, stream);
}

// Launches projections with the order of sums of projection_args.h.
absl::Status LaunchOthers(absl::Span<const ProjectionParams> params, float* workspace, const gpu::Stream& stream) {
  const int64_t rows = params[0].rows;
  const gpu::Rounding rounding = gpu::RoundingOf(params);
  const int64_t rounded = RoundedRowsFloats(params);
  float* totals = nullptr;
  if (TotalsFloats(params, stream) > 0) {
    GDN_RETURN_IF_ERROR(RequirePointer(kProjectionsOp, "workspace", workspace));
    totals = workspace + rounded;
  }
  if (rounding == gpu::Rounding::kNone) return LaunchByFormat(params, {}, totals, stream);
  const int64_t at_once = gpu::RoundedRowsAtOnce(rounding, params[0].weight.cols);
  if (at_once > gpu::kFewRows) GDN_RETURN_IF_ERROR(RequirePointer(kProjectionsOp, "workspace", workspace));
  for (int64_t first = 0; first < rows; first += at_once) {
    GDN_RETURN_IF_ERROR(
        LaunchRows(params, rounding, first, std::min(at_once, rows - first), workspace, totals, stream));
  }
  return absl::OkStatus();
}

// The params of one call by the order of their sums.
struct ByOrder {
  absl::InlinedVector<ProjectionParams, kMaxProjectionsPerLaunch> on_matrix_units;
  absl::InlinedVector<ProjectionParams, kMaxProjectionsPerLaunch> others;

  ByOrder(absl::Span<const ProjectionParams> params, const gpu::Stream& stream) {
    for (const ProjectionParams& p : params) {
      (gpu::UsesMatrixUnits(p, stream) ? on_matrix_units : others).push_back(p);
    }
  }
};

absl::Status LaunchAll(absl::Span<const ProjectionParams> params, float* workspace, const gpu::Stream& stream) {
  if (params[0].rows == 0) return absl::OkStatus();
  for (size_t i = 0; i < params.size(); ++i) {
    const uint16_t* const terms = params[i].x_terms;
    if (terms == nullptr || (gpu::Aligned16(terms) && TakesTermsGpu(params[i], stream))) continue;
    return InvalidField(kProjectionsOp, "x_terms", "x_terms of matrix ", i,
                        " is given; expected null or, if the call takes terms (Backend::TakesTerms), a multiple of 16");
  }
  const ByOrder by_order(params, stream);
  if (!by_order.on_matrix_units.empty()) {
    if (gpu::TermsFloats(by_order.on_matrix_units, stream) > 0) {
      GDN_RETURN_IF_ERROR(RequirePointer(kProjectionsOp, "workspace", workspace));
    }
    GDN_RETURN_IF_ERROR(gpu::LaunchOnMatrixUnits(by_order.on_matrix_units, workspace, stream));
  }
  return by_order.others.empty() ? absl::OkStatus() : LaunchOthers(by_order.others, workspace, stream);
}

}  // namespace

int64_t GpuWorkspaceFloats(absl::Span<const ProjectionParams> params, const gpu::Stream& stream) {
  const ByOrder by_order(params, stream);
  return std::max(gpu::TermsFloats(by_order.on_matrix_units, stream),
                  RoundedRowsFloats(by_order.others) + TotalsFloats(by_order.others, stream));
}
int64_t GpuWorkspaceFloats(const ProjectionParams& params, const gpu::Stream& stream) {
  return GpuWorkspaceFloats({&params, 1}, stream);
}

bool TakesTermsGpu(const ProjectionParams& params, const gpu::Stream& stream) {
  return params.x.dtype == DType::kF32 && params.x_stride == params.weight.cols && params.weight.cols % 8 == 0 &&
         gpu::UsesMatrixUnits(params, stream);
}

absl::Status ProjectionGpu(const ProjectionParams& params, float* workspace, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateOnGpu(0, params));
  return LaunchAll({&params, 1}, workspace, stream);
}

absl::Status ProjectionsGpu(absl::Span<const ProjectionParams> params, float* workspace, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateTogether(params));
  return LaunchAll(params, workspace, stream);
}

}  // namespace gdn
