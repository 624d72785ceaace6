#include "kernels/layer/layer_weights.h"

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

constexpr char kWeightsOp[] = "layer weights";

// A matrix that the layout does not have is expected with 0 rows, and then needs nothing else.
absl::Status ValidateMatrix(const char* name, const WeightMatrix& matrix, int64_t rows, int64_t cols) {
  if (rows == 0 && matrix.rows == 0) return absl::OkStatus();
  if (matrix.rows != rows || matrix.cols != cols) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidTensorShape,
                     absl::StrCat(kWeightsOp, ": ", name, " is [", matrix.rows, ", ", matrix.cols,
                                  "]; dims and projections make it [", rows, ", ", rows == 0 ? 0 : cols, "]"),
                     {{"field", name}});
  }
  return RequirePointer(kWeightsOp, name, matrix.data);
}

// `down` alone [rows, cols], or the product of `up` [rows, rank] and `down` [rank, cols] where there is a rank.
absl::Status ValidateFactors(const char* down_name, const WeightMatrix& down, const char* up_name,
                             const WeightMatrix& up, int64_t rows, int64_t cols, int64_t rank) {
  GDN_RETURN_IF_ERROR(ValidateMatrix(down_name, down, rank > 0 ? rank : rows, cols));
  return ValidateMatrix(up_name, up, rank > 0 ? rows : 0, rank);
}

}  // namespace

absl::Status ValidateLayerWeights(const LayerWeights& weights) {
  const LayerDims& dims = weights.spec.dims;
  GDN_RETURN_IF_ERROR(ValidateMixerWeights(weights));
  GDN_RETURN_IF_ERROR(RequireRange(kWeightsOp, "dims.hidden_size", dims.hidden_size, 1, kMaxHiddenSize));
  const bool interleaved = weights.spec.projections == ProjectionLayout::kInterleaved;
  const int64_t z_rows = dims.value_features();
  const int64_t heads = dims.value_heads;
  const int64_t hidden = dims.hidden_size;
  GDN_RETURN_IF_ERROR(
      ValidateMatrix("in_qkv", weights.in_qkv, dims.conv_channels() + (interleaved ? z_rows : 0), hidden));
  GDN_RETURN_IF_ERROR(ValidateMatrix("in_b", weights.in_b, interleaved ? 2 * heads : heads, hidden));
  GDN_RETURN_IF_ERROR(ValidateFactors("in_z", weights.in_z, "z_up", weights.z_up, interleaved ? 0 : z_rows, hidden,
                                      weights.spec.output_gate_rank));
  GDN_RETURN_IF_ERROR(ValidateFactors("in_a", weights.in_a, "a_up", weights.a_up,
                                      interleaved ? 0 : dims.decay_features(), hidden, weights.spec.decay_rank));
  return ValidateMatrix("out", weights.out, hidden, dims.value_features());
}

absl::Status ValidateMixerWeights(const LayerWeights& weights) {
  const LayerSpec& spec = weights.spec;
  GDN_RETURN_IF_ERROR(ValidateLayerSpec(spec));
  if (spec != ServedForm(spec)) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
        absl::StrCat(kWeightsOp, ": the spec is a checkpoint's; expected its ServedForm, and weights in that form"));
  }
  GDN_RETURN_IF_ERROR(RequireRange(kWeightsOp, "dims.conv_width", spec.dims.conv_width, 2, kMaxConvWidth));
  return RequirePointers(kWeightsOp, {{"conv_weight", weights.conv_weight},
                               {"a_log", weights.a_log},
                               {"dt_bias", weights.dt_bias},
                               {"norm_weight", weights.norm_weight}});
}

}  // namespace gdn
