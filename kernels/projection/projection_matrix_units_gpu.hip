// Projections on matrix units: which operands are split into terms, and how many rows and outputs at a time.
//
// Order of a sum: bf16_terms_gpu.h. BF16 operands whose rows are aligned, and given terms, are read where they lie.
// Terms of others pass through the workspace: first x's, for as many rows as fit half of it, then W's, for as many
// outputs as fit the rest.

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
constexpr int64_t kMostFeatures = int64_t{1} << 16;  // three terms of 64 rows and of 64 outputs fit beside them
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

using ProjectionList = absl::InlinedVector<ProjectionParams, kMaxProjectionsPerLaunch>;

// The rows that a call does at once, and the floats of its workspace.
struct Pieces {
  explicit Pieces(absl::Span<const ProjectionParams> params)
      : most(kMostFloats - (params[0].path == ProjectionPath::kRowStable ? kMostPartSums : 0)),
        all_rows(params[0].rows),
        rows(all_rows) {
    const ProjectionParams& first = params[0];
    const bool splits_weights = !absl::c_all_of(params, WeightIsTerms);
    if (first.x_terms == nullptr && !XIsTerms(first)) {
      rows = RowsThatFit(rows, FloatsOfX(first), splits_weights ? most / 2 : most);
      x_floats = rows * FloatsOfX(first);
    }
  }
  int64_t OutputsAtOnce(const ProjectionParams& p) const {
    return RowsThatFit(p.weight.rows, FloatsOfTerms(p.weight.format, p.weight.cols), most - x_floats);
  }
  // Returns the floats of sums of parts: those of all rows at once, or of the last ones, which may need more.
  int64_t PartSums(ProjectionList of_terms, const Stream& stream) const {
    int64_t floats = 0;
    for (const int64_t at_once : {rows, all_rows % rows}) {
      if (of_terms.empty() || at_once == 0 || AreFewTerms(at_once)) continue;
      for (ProjectionParams& p : of_terms) p.rows = at_once;
      floats = std::max(
          floats, PartSumsFloats(of_terms, XIsTerms(of_terms[0]) ? 1 : TermsOf(FormatOf(of_terms[0].x.dtype)), stream));
    }
    return floats;
  }

  int64_t most;  // floats of terms
  int64_t all_rows;
  int64_t rows;  // at once
  int64_t x_floats = 0;
};

absl::StatusOr<Bf16Terms> TermsOfX(const ProjectionParams& p, float* workspace, const Stream& stream) {
  if (p.x_terms != nullptr) {
    const uint32_t stride = TermsStride(p.weight.cols);
    return Bf16Terms{
        .data = p.x_terms, .stride = stride, .plane = p.rows * int64_t{stride}, .terms = TermsOf(WeightFormat::kF32)};
  }
  if (XIsTerms(p)) {
    return Bf16Terms{.data = static_cast<const uint16_t*>(p.x.data), .stride = static_cast<uint32_t>(p.x_stride)};
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
    GDN_RETURN_IF_ERROR(LaunchTermsGemm({&part, 1}, x, w, /*part_sums=*/nullptr, stream));
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

int64_t TermsFloats(absl::Span<const ProjectionParams> params, const Stream& stream) {
  if (params.empty()) return 0;
  const Pieces pieces(params);
  int64_t of_weights = 0;
  ProjectionList of_terms;
  for (const ProjectionParams& p : params) {
    if (WeightIsTerms(p)) {
      of_terms.push_back(p);
    } else {
      of_weights = std::max(of_weights, pieces.OutputsAtOnce(p) * FloatsOfTerms(p.weight.format, p.weight.cols));
    }
  }
  return pieces.x_floats + std::max(of_weights, pieces.PartSums(of_terms, stream));
}

absl::Status LaunchOnMatrixUnits(absl::Span<const ProjectionParams> params, float* workspace, const Stream& stream) {
  const int64_t rows = params[0].rows;
  const Pieces pieces(params);
  float* const after_x = workspace == nullptr ? nullptr : workspace + pieces.x_floats;
  for (int64_t first = 0; first < rows; first += pieces.rows) {
    ProjectionList of_terms;
    ProjectionList others;
    for (ProjectionParams p : params) {
      p.rows = std::min(pieces.rows, rows - first);
      p.x = p.x.From(first * p.x_stride);
      p.y = p.y.From(first * p.y_stride);
      (WeightIsTerms(p) ? of_terms : others).push_back(p);
    }
    const ProjectionParams& any = of_terms.empty() ? others[0] : of_terms[0];
    GDN_ASSIGN_OR_RETURN(const Bf16Terms x, TermsOfX(any, workspace, stream));
    if (!of_terms.empty()) {
      GDN_RETURN_IF_ERROR(AreFewTerms(any.rows) ? LaunchFewTerms(of_terms, x, stream)
                                                : LaunchTermsGemm(of_terms, x, {.stride = TermsStride(any.weight.cols)},
                                                                  after_x, stream));
    }
    for (const ProjectionParams& p : others) {
      GDN_RETURN_IF_ERROR(LaunchBySlices(p, x, after_x, pieces.OutputsAtOnce(p), stream));
    }
  }
  return absl::OkStatus();
}

}  // namespace gdn::gpu
