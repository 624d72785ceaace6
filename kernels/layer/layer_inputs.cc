#include "kernels/layer/layer_inputs.h"

#include <array>

#include "absl/types/span.h"
#include "base/status_macros.h"

namespace gdn {

absl::Status ProjectLayerInputs(Backend& backend, ProjectionPath path, const LayerWeights& weights,
                                const InputTensor& hidden_states, int64_t tokens, const ProjectedInputs& to) {
  const LayerDims& dims = weights.spec.dims;
  const auto projection = [&](const InputTensor& x, const WeightMatrix& weight, float* y, int64_t y_stride) {
    return ProjectionParams{.path = path,
                            .math = backend.info().math,
                            .rows = tokens,
                            .x = x,
                            .x_stride = weight.cols,
                            .weight = weight,
                            .y = y,
                            .y_stride = y_stride};
  };
  if (!dims.decays_by_channel()) {
    const int64_t qkvz_features = dims.conv_channels() + dims.value_features();
    const int64_t ba_features = 2 * int64_t{dims.value_heads};
    // Side by side: of the interleaved layout the first of each pair is the whole.
    const std::array<ProjectionParams, 4> inputs = {
        projection(hidden_states, weights.in_qkv, to.qkvz, qkvz_features),
        projection(hidden_states, weights.in_b, to.ba, ba_features),
        projection(hidden_states, weights.in_z, to.qkvz + weights.in_qkv.rows, qkvz_features),
        projection(hidden_states, weights.in_a, to.ba + weights.in_b.rows, ba_features)};
    const size_t count = weights.spec.projections == ProjectionLayout::kFlat ? 4 : 2;
    return backend.Projections(absl::MakeConstSpan(inputs).first(count));
  }
  const auto from_hidden = [&](const WeightMatrix& weight, float* y) {
    return projection(hidden_states, weight, y, weight.rows);
  };
  const std::array<ProjectionParams, 4> inputs = {from_hidden(weights.in_qkv, to.mixed_qkv),
                                                  from_hidden(weights.in_b, to.b),
                                                  from_hidden(weights.in_z, to.low_z != nullptr ? to.low_z : to.z),
                                                  from_hidden(weights.in_a, to.low_a != nullptr ? to.low_a : to.a)};
  GDN_RETURN_IF_ERROR(backend.Projections(inputs));
  if (to.low_z != nullptr) {
    GDN_RETURN_IF_ERROR(backend.Projection(projection(to.low_z, weights.z_up, to.z, weights.z_up.rows)));
  }
  if (to.low_a == nullptr) return absl::OkStatus();
  return backend.Projection(projection(to.low_a, weights.a_up, to.a, weights.a_up.rows));
}

}  // namespace gdn
