// Projections on the GPU: which kernel, and the arguments of all.
//
// The kernels: projection_few_rows_gpu.hip, projection_tiles_gpu.hip, projection_gemm_gpu.hip.

#include <cstddef>

#include "base/status_macros.h"
#include "kernels/common/contract.h"
#include "kernels/gpu/launch.h"
#include "kernels/gpu/typed_elements.h"
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
                             .fp8_scales = p.weight.scales};
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

absl::Status LaunchFew(absl::Span<const ProjectionParams> params, const Stream& stream) {
  switch (params[0].weight.format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return LaunchFewRows(params, stream);
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_0:
    case WeightFormat::kQ5_1:
      return LaunchFewRowsOfFifths(params, stream);
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K:
    case WeightFormat::kQ6_K:
      return LaunchFewRowsOfBlocks256(params, stream);
    case WeightFormat::kQ2_K:
    case WeightFormat::kQ3_K:
      return LaunchFewRowsOfTwoBits(params, stream);
    case WeightFormat::kIQ4_NL:
    case WeightFormat::kIQ4_XS:
    case WeightFormat::kIQ3_S:
      return LaunchFewRowsOfIq(params, stream);
    default:
      return LaunchFewRowsOfBlocks32(params, stream);
  }
}

// Every kernel keeps the same order of sums, so rows, outputs and the device may choose among them, whatever the path.
absl::Status LaunchFastest(absl::Span<const ProjectionParams> params, const Stream& stream) {
  if (params[0].rows <= kFewRows) return LaunchFew(params, stream);
  return GemmFillsDevice(params, stream) ? LaunchGemm(params, stream) : LaunchTiles(params, stream);
}

}  // namespace
}  // namespace gpu

namespace {

constexpr char kProjectionsOp[] = "Projections";

absl::Status Mismatch(size_t index, absl::string_view field) {
  return InvalidField(kProjectionsOp, field, field, " of matrix ", index,
                      " differs from the first's; matrices of one call share x, rows, x_stride, path and cols");
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
    if (p.x_stride != first.x_stride) return Mismatch(i, "x_stride");
    if (p.path != first.path) return Mismatch(i, "path");
    if (p.weight.cols != first.weight.cols) return Mismatch(i, "weight.cols");
  }
  return absl::OkStatus();
}

absl::Status LaunchByFormat(absl::Span<const ProjectionParams> params, const gpu::Stream& stream) {
  if (params[0].rows == 0) return absl::OkStatus();
  // Neighbours of one format share a launch.
  while (!params.empty()) {
    size_t count = 1;
    while (count < params.size() && params[count].weight.format == params[0].weight.format) ++count;
    GDN_RETURN_IF_ERROR(gpu::LaunchFastest(params.first(count), stream));
    params.remove_prefix(count);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ProjectionGpu(const ProjectionParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateOnGpu(0, params));
  return LaunchByFormat({&params, 1}, stream);
}

absl::Status ProjectionsGpu(absl::Span<const ProjectionParams> params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateTogether(params));
  return LaunchByFormat(params, stream);
}

}  // namespace gdn
