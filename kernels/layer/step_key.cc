#include "kernels/layer/step_key.h"

#include <array>
#include <type_traits>

namespace gdn {
namespace {

// No struct: between its fields there may be bytes that mean nothing.
template <typename... Values>
void Add(std::string& key, const Values&... values) {
  static_assert((std::is_scalar_v<Values> && ...));
  (key.append(reinterpret_cast<const char*>(&values), sizeof(values)), ...);
}

void AddWeights(const LayerWeights& weights, std::string& key) {
  const LayerSpec& spec = weights.spec;
  for (const WeightMatrix* matrix :
       {&weights.in_qkv, &weights.in_z, &weights.in_b, &weights.in_a, &weights.a_up, &weights.z_up, &weights.out}) {
    Add(key, matrix->data, matrix->scales, matrix->format, matrix->rows, matrix->cols);
  }
  Add(key, spec.projections, spec.a_log, spec.decay_gate, spec.decay_lower_bound, spec.beta_scale, spec.norm_epsilon,
      spec.output_gate, weights.tiled_out, weights.conv_weight, weights.a_log, weights.dt_bias, weights.norm_weight);
}

}  // namespace

std::string StepKey(const LayerStep& step) {
  std::string key;
  key.reserve(512);
  const StateLayout& layout = step.pool.layout;
  const LayerDims& dims = layout.dims();
  Add(key, step.kind, step.draft, step.delta_rule.use_qk_l2norm, step.delta_rule.scale, step.batch.sequences,
      step.batch.tokens(), step.batch.max_length(), step.pool.data, step.pool.slot_count, layout.slot_floats(),
      layout.max_draft(), layout.base_dtype(), dims.hidden_size, dims.key_heads, dims.value_heads, dims.key_dim,
      dims.value_dim, dims.conv_width, dims.decay, step.output.data, step.output.dtype);
  std::array<LayerField, kMaxStepFields> storage;
  for (const LayerField& field : LayerFields(step.kind, dims, storage)) {
    const InputTensor& tensor = step.*field.tensor;
    Add(key, tensor.data, tensor.dtype);
  }
  if (step.weights != nullptr) AddWeights(*step.weights, key);
  return key;
}

}  // namespace gdn
