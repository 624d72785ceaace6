#include "tools/gdn_parity/gdn_layer_reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "base/status_macros.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"

namespace gdn::parity {
namespace {

// What enters the convolution.
struct Projected {
  std::vector<float> mixed_qkv, z, b, a;
};

using Project = std::function<void(const WeightMatrix& weight, std::vector<float>& y, int64_t column, int64_t stride)>;

// y from column `column` on, rows of `stride` elements, is hidden_states times the weight. One of no rows leaves it.
Project ProjectionOf(const LayerStep& step, ProductMath math) {
  return [&step, math](const WeightMatrix& weight, std::vector<float>& y, int64_t column, int64_t stride) {
    if (weight.rows == 0) return;
    ProjectionReference({.math = math,
                         .rows = step.batch.tokens(),
                         .x = step.hidden_states,
                         .x_stride = weight.cols,
                         .weight = weight,
                         .y = y.data() + column,
                         .y_stride = stride});
  };
}

// The product with `down`, or with `up` after it.
std::vector<float> ProjectTwice(const LayerStep& step, ProductMath math, const WeightMatrix& down,
                                const WeightMatrix& up) {
  const int64_t tokens = step.batch.tokens();
  std::vector<float> y(tokens * down.rows);
  ProjectionOf(step, math)(down, y, 0, down.rows);
  if (up.rows == 0) return y;
  std::vector<float> high(tokens * up.rows);
  ProjectionReference({.math = math,
                       .rows = tokens,
                       .x = y.data(),
                       .x_stride = up.cols,
                       .weight = up,
                       .y = high.data(),
                       .y_stride = up.rows});
  return high;
}

Projected ProjectInputs(const LayerStep& step, ProductMath math) {
  const LayerWeights& weights = *step.weights;
  const LayerDims& dims = weights.spec.dims;
  if (dims.decays_by_channel()) {
    return {.mixed_qkv = ProjectTwice(step, math, weights.in_qkv, {}),
            .z = ProjectTwice(step, math, weights.in_z, weights.z_up),
            .b = ProjectTwice(step, math, weights.in_b, {}),
            .a = ProjectTwice(step, math, weights.in_a, weights.a_up)};
  }
  const int64_t tokens = step.batch.tokens();
  const int64_t qkvz_features = dims.conv_channels() + dims.value_features();
  const int64_t ba_features = 2 * int64_t{dims.value_heads};
  std::vector<float> qkvz(tokens * qkvz_features), ba(tokens * ba_features);
  const Project project = ProjectionOf(step, math);
  project(weights.in_qkv, qkvz, 0, qkvz_features);
  project(weights.in_z, qkvz, weights.in_qkv.rows, qkvz_features);
  project(weights.in_b, ba, 0, ba_features);
  project(weights.in_a, ba, weights.in_b.rows, ba_features);

  Projected out;
  out.mixed_qkv.resize(tokens * dims.conv_channels());
  out.z.resize(tokens * dims.value_features());
  out.b.resize(tokens * dims.value_heads);
  out.a.resize(tokens * dims.value_heads);
  QkvzSplitReference({.layout = weights.spec.projections,
                      .dims = dims,
                      .rows = tokens,
                      .qkvz = qkvz.data(),
                      .ba = ba.data(),
                      .mixed_qkv = out.mixed_qkv.data(),
                      .z = out.z.data(),
                      .b = out.b.data(),
                      .a = out.a.data()});
  return out;
}

// The delta rule `rule` on what `norm` makes of q and k.
void NormalizeAndScan(const LayerStep& step, QkL2NormParams norm, DeltaRuleParams rule) {
  const LayerDims& dims = step.pool.layout.dims();
  std::vector<float> q(step.batch.tokens() * dims.key_features()), k(q.size());
  norm.key_heads = dims.key_heads;
  norm.key_dim = dims.key_dim;
  norm.rows = step.batch.tokens();
  norm.q_out = q.data();
  norm.k_out = k.data();
  QkL2NormReference(norm);
  rule.q = q.data();
  rule.k = k.data();
  rule.q_stride = rule.k_stride = dims.key_features();
  DeltaRuleScanReference(rule);
}

// From the convolution to the gated norm; `y` is [tokens, HV, V].
void MixReference(const LayerStep& step, const float* mixed_qkv, const float* z, const float* b, const float* a,
                  float* y) {
  const LayerWeights& weights = *step.weights;
  const LayerDims& dims = weights.spec.dims;
  const int64_t tokens = step.batch.tokens();
  std::vector<float> convolved(tokens * dims.conv_channels());
  std::vector<float> g(tokens * dims.decay_features()), beta(tokens * dims.value_heads);
  CausalConv1dReference({.pool = step.pool,
                         .batch = step.batch,
                         .token_counts = step.token_counts,
                         .x = mixed_qkv,
                         .weight = weights.conv_weight,
                         .y = convolved.data()});
  GatingReference({.convention = weights.spec.a_log,
                   .gate = weights.spec.decay_gate,
                   .lower_bound = weights.spec.decay_lower_bound,
                   .beta_scale = weights.spec.beta_scale,
                   .value_heads = dims.value_heads,
                   .decay_dim = dims.decay_dim(),
                   .rows = tokens,
                   .a = a,
                   .b = b,
                   .a_log = weights.a_log,
                   .dt_bias = weights.dt_bias,
                   .g = g.data(),
                   .beta = beta.data()});
  NormalizeAndScan(step,
                   {.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dims.key_dim))),
                    .q = convolved.data(),
                    .k = convolved.data() + dims.key_features(),
                    .in_stride = dims.conv_channels()},
                   {.pool = step.pool,
                    .batch = step.batch,
                    .v = convolved.data() + 2 * dims.key_features(),
                    .g = g.data(),
                    .beta = beta.data(),
                    .v_stride = dims.conv_channels(),
                    .output = y});
  GatedRmsNormReference({.gate = weights.spec.output_gate,
                         .value_dim = dims.value_dim,
                         .rows = tokens * dims.value_heads,
                         .epsilon = weights.spec.norm_epsilon,
                         .x = y,
                         .z = z,
                         .weight = weights.norm_weight,
                         .y = y});
}

void BareReference(const LayerStep& step) {
  const LayerDims& dims = step.pool.layout.dims();
  NormalizeAndScan(step,
                   {.normalize = step.delta_rule.use_qk_l2norm,
                    .scale = step.delta_rule.scale,
                    .q = step.q.floats(),
                    .k = step.k.floats(),
                    .in_stride = dims.key_features()},
                   {.pool = step.pool,
                    .batch = step.batch,
                    .v = step.v.floats(),
                    .g = step.g.floats(),
                    .beta = step.beta.floats(),
                    .v_stride = dims.value_features(),
                    .output = step.output.floats()});
}

// Value heads in the order of a tiled out-projection's columns.
std::vector<float> TiledHeads(const LayerDims& dims, const std::vector<float>& grouped) {
  std::vector<float> tiled(grouped.size());
  const int64_t rows = static_cast<int64_t>(grouped.size()) / dims.value_dim;
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(grouped.begin() + row * dims.value_dim, dims.value_dim,
                tiled.begin() + OutputRowOf(row, dims.key_heads, dims.group()) * dims.value_dim);
  }
  return tiled;
}

// `step` with tensors of float32 only.
void RunReference(const LayerStep& step, ProductMath math) {
  if (step.kind == InputKind::kDeltaRule) return BareReference(step);
  if (step.kind == InputKind::kProjected) {
    return MixReference(step, step.mixed_qkv.floats(), step.z.floats(), step.b.floats(), step.a.floats(),
                        step.output.floats());
  }
  const LayerDims& dims = step.weights->spec.dims;
  const int64_t tokens = step.batch.tokens();
  const Projected in = ProjectInputs(step, math);
  std::vector<float> mixed(tokens * dims.value_features());
  MixReference(step, in.mixed_qkv.data(), in.z.data(), in.b.data(), in.a.data(), mixed.data());
  if (step.weights->tiled_out) mixed = TiledHeads(dims, mixed);
  ProjectionReference({.math = math,
                       .rows = tokens,
                       .x = mixed.data(),
                       .x_stride = dims.value_features(),
                       .weight = step.weights->out,
                       .y = step.output,
                       .y_stride = dims.hidden_size});
  ZeroPaddingRows(step.batch, dims.hidden_size, step.output.floats());
}

}  // namespace

absl::Status GdnLayerReference(const LayerStep& step, ProductMath math) {
  GDN_RETURN_IF_ERROR(ValidateLayerStep(step));
  const int64_t tokens = step.batch.tokens();
  if (tokens == 0) return absl::OkStatus();
  const LayerDims& dims = step.pool.layout.dims();
  LayerStep wide = step;
  std::array<LayerField, kMaxStepFields> storage;
  std::array<std::vector<float>, kMaxStepFields> inputs;
  size_t used = 0;
  for (const LayerField& field : LayerFields(step.kind, dims, storage)) {
    InputTensor& tensor = wide.*field.tensor;
    std::vector<float>& values = inputs[used++];
    values.resize(tokens * field.features);
    ConvertToFloat(tensor.dtype, tensor.data, values.size(), values.data());
    tensor = values.data();
  }
  std::vector<float> output(tokens * LayerOutputFeatures(step.kind, dims));
  wide.output = output.data();
  RunReference(wide, math);
  ConvertFromFloat(output.data(), output.size(), step.output.dtype, step.output.data);
  return absl::OkStatus();
}

}  // namespace gdn::parity
