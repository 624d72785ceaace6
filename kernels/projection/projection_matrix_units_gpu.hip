// Projections on matrix units: which operands are split into terms, and how many rows and outputs at a time.
//
// Order of a sum: bf16_terms_gpu.h. BF16 operands whose rows are aligned are read where they lie. Terms of others pass
// through the workspace: first x's, for as many rows as fit half of it, then W's, for as many outputs as fit the rest.

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "base/status_macros.h"
#include "kernels/gpu/launch.h"
#include "kernels/projection/bf16_terms_gpu.h"
#include "kernels/projection/projection_args.h"

namespace gdn::gpu {
namespace {

constexpr int64_t kMostFloats = int64_t{64} << 18;
constexpr int64_t kMostFeatures = int64_t{1} << 16;  // three terms of 85 rows and of 85 outputs fit
constexpr int64_t kWholeTiles = 128;

bool AreTerms(const void* data, WeightFormat format, int64_t stride, int64_t features) {
  return format == WeightFormat::kBF16 && Aligned16(data) && features % 8 == 0 && stride % 8 == 0 &&
         stride <= 0x7fffffff;
}
bool XIsTerms(const ProjectionParams& p) { return AreTerms(p.x.data, FormatOf(p.x.dtype), p.x_stride, p.weight.cols); }
bool WeightIsTerms(const ProjectionParams& p) {
  return AreTerms(p.weight.data, p.weight.format, p.weight.cols, p.weight.cols);
}

int64_t FloatsOfX(const ProjectionParams& p) { return FloatsOfTerms(FormatOf(p.x.dtype), p.weight.cols); }

// Returns how many of `rows` rows of so many floats fit into `room`, in whole tiles if there is more than one.
int64_t RowsThatFit(int64_t rows, int64_t floats, int64_t room) {
  const int64_t fit = std::max<int64_t>(room / floats, 1);
  if (rows <= fit) return rows;
  return fit >= kWholeTiles ? fit / kWholeTiles * kWholeTiles : fit;
}

// The parts of a call's workspace.
struct Parts {
  explicit Parts(absl::Span<const ProjectionParams> params) : rows(params[0].rows) {
    const ProjectionParams& first = params[0];
    const bool splits_weights = !absl::c_all_of(params, WeightIsTerms);
    if (!XIsTerms(first)) {
      rows = RowsThatFit(rows, FloatsOfX(first), splits_weights ? kMostFloats / 2 : kMostFloats);
      x_floats = rows * FloatsOfX(first);
    }
  }
  int64_t OutputsAtOnce(const ProjectionParams& p) const {
    return RowsThatFit(p.weight.rows, FloatsOfTerms(p.weight.format, p.weight.cols), kMostFloats - x_floats);
  }

  int64_t rows;  // at once
  int64_t x_floats = 0;
};

absl::StatusOr<Bf16Terms> TermsOfX(const ProjectionParams& p, float* workspace, const Stream& stream) {
  if (XIsTerms(p)) {
    return Bf16Terms{.data = static_cast<const uint16_t*>(p.x.data), .stride = static_cast<int32_t>(p.x_stride)};
  }
  return LaunchSplit({.data = p.x.data,
                      .format = FormatOf(p.x.dtype),
                      .stride = p.x_stride,
                      .rows = p.rows,
                      .features = static_cast<int32_t>(p.weight.cols)},
                     workspace, stream);
}

// Computes a projection whose weights are no terms, some outputs at a time.
absl::Status LaunchBySlices(const ProjectionParams& p, const Bf16Terms& x, float* workspace, int64_t outputs,
                            const Stream& stream) {
  for (int64_t first = 0; first < p.weight.rows; first += outputs) {
    ProjectionParams part = p;
    part.weight.rows = std::min(outputs, p.weight.rows - first);
    part.y.data = p.y.From(first).data;
    GDN_ASSIGN_OR_RETURN(const Bf16Terms w, LaunchSplit({.data = p.weight.data,
                                                         .format = p.weight.format,
                                                         .stride = p.weight.cols,
                                                         .first = first,
                                                         .rows = part.weight.rows,
                                                         .features = static_cast<int32_t>(p.weight.cols),
                                                         .fp8_scales = p.weight.scales},
                                                        workspace, stream));
    part.weight.data = w.data;
    GDN_RETURN_IF_ERROR(LaunchTermsGemm({&part, 1}, x, w, stream));
  }
  return absl::OkStatus();
}

}  // namespace

bool UsesMatrixUnits(const ProjectionParams& params, const Stream& stream) {
  // Splitting other weights anew in each decode would cost more than it gains.
  const bool pays = params.path == ProjectionPath::kSequenceGemm || params.weight.format == WeightFormat::kBF16;
  return stream.matrix_units && pays && params.rows > 0 && params.weight.rows > 0 && params.weight.cols > 0 &&
         params.weight.cols <= kMostFeatures && !TakesInt8Inputs(params.math, params.weight.format) &&
         !LiesAsHalves(params.weight) && !TakesHalves(params);
}

int64_t TermsFloats(absl::Span<const ProjectionParams> params) {
  if (params.empty()) return 0;
  const Parts parts(params);
  int64_t of_weights = 0;
  for (const ProjectionParams& p : params) {
    if (WeightIsTerms(p)) continue;
    of_weights = std::max(of_weights, parts.OutputsAtOnce(p) * FloatsOfTerms(p.weight.format, p.weight.cols));
  }
  return parts.x_floats + of_weights;
}

absl::Status LaunchOnMatrixUnits(absl::Span<const ProjectionParams> params, float* workspace, const Stream& stream) {
  const int64_t rows = params[0].rows;
  const Parts parts(params);
  for (int64_t first = 0; first < rows; first += parts.rows) {
    absl::InlinedVector<ProjectionParams, kMaxProjectionsPerLaunch> of_terms;
    absl::InlinedVector<ProjectionParams, kMaxProjectionsPerLaunch> others;
    for (ProjectionParams p : params) {
      p.rows = std::min(parts.rows, rows - first);
      p.x = p.x.From(first * p.x_stride);
      p.y = p.y.From(first * p.y_stride);
      (WeightIsTerms(p) ? of_terms : others).push_back(p);
    }
    const ProjectionParams& any = of_terms.empty() ? others[0] : of_terms[0];
    GDN_ASSIGN_OR_RETURN(const Bf16Terms x, TermsOfX(any, workspace, stream));
    if (!of_terms.empty()) {
      GDN_RETURN_IF_ERROR(AreFewTerms(any.rows)
                              ? LaunchFewTerms(of_terms, x, stream)
                              : LaunchTermsGemm(of_terms, x, {.stride = TermsStride(any.weight.cols)}, stream));
    }
    for (const ProjectionParams& p : others) {
      GDN_RETURN_IF_ERROR(LaunchBySlices(p, x, workspace + parts.x_floats, parts.OutputsAtOnce(p), stream));
    }
  }
  return absl::OkStatus();
}

}  // namespace gdn::gpu
