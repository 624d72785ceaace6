#include "tests/support/delta_rule_problem.h"

#include <algorithm>
#include <cmath>

namespace gdn {
namespace {

// Scales rows of `dim` to the 2-norm `norm`.
void NormalizeRows(std::vector<float>& values, int32_t dim, double norm) {
  for (size_t row = 0; row < values.size(); row += dim) {
    double sum = 0.0;
    for (int32_t i = 0; i < dim; ++i) sum += double{values[row + i]} * values[row + i];
    for (int32_t i = 0; i < dim; ++i) values[row + i] = static_cast<float>(values[row + i] * norm / std::sqrt(sum));
  }
}

}  // namespace

std::vector<float> SliceRows(const std::vector<float>& tensor, int64_t width, int64_t first, int64_t last) {
  return {tensor.begin() + first * width, tensor.begin() + last * width};
}

void Append(const std::vector<float>& more, std::vector<float>& tensor) {
  tensor.insert(tensor.end(), more.begin(), more.end());
}

LayerDims OperatorDims(int32_t key_heads, int32_t value_heads, int32_t key_dim, int32_t value_dim) {
  return {.key_heads = key_heads, .value_heads = value_heads, .key_dim = key_dim, .value_dim = value_dim};
}

LayerDims ChannelDims(int32_t key_heads, int32_t value_heads, int32_t key_dim, int32_t value_dim) {
  LayerDims dims = OperatorDims(key_heads, value_heads, key_dim, value_dim);
  dims.decay = DecayKind::kPerChannel;
  return dims;
}

DeltaRuleInputs RandomDeltaRuleInputs(const LayerDims& dims, int64_t tokens, Random& random, float g_low) {
  DeltaRuleInputs inputs;
  inputs.dims = dims;
  inputs.tokens = tokens;
  inputs.q = random.Normal(tokens * dims.key_features());
  inputs.k = random.Normal(tokens * dims.key_features());
  inputs.v = random.Normal(tokens * dims.value_features());
  inputs.g = random.Uniform(tokens * dims.decay_features(), g_low, 0.0f);
  inputs.beta = random.Uniform(tokens * dims.value_heads, 0.0f, 1.0f);
  NormalizeRows(inputs.q, dims.key_dim, 1.0 / std::sqrt(static_cast<double>(dims.key_dim)));
  NormalizeRows(inputs.k, dims.key_dim, 1.0);
  return inputs;
}

DeltaRuleInputs Slice(const DeltaRuleInputs& inputs, int64_t first, int64_t last) {
  DeltaRuleInputs slice;
  slice.dims = inputs.dims;
  slice.tokens = last - first;
  slice.q = SliceRows(inputs.q, inputs.dims.key_features(), first, last);
  slice.k = SliceRows(inputs.k, inputs.dims.key_features(), first, last);
  slice.v = SliceRows(inputs.v, inputs.dims.value_features(), first, last);
  slice.g = SliceRows(inputs.g, inputs.dims.decay_features(), first, last);
  slice.beta = SliceRows(inputs.beta, inputs.dims.value_heads, first, last);
  return slice;
}

DeltaRuleInputs Concatenate(absl::Span<const DeltaRuleInputs> parts) {
  DeltaRuleInputs whole;
  for (const DeltaRuleInputs& part : parts) {
    whole.dims = part.dims;
    whole.tokens += part.tokens;
    Append(part.q, whole.q);
    Append(part.k, whole.k);
    Append(part.v, whole.v);
    Append(part.g, whole.g);
    Append(part.beta, whole.beta);
  }
  return whole;
}

SlotImage RandomSlotImage(const LayerDims& dims, int64_t log_rows, Random& random) {
  return {.base = random.Normal(dims.state_elements(), 0.5f),
          .log_k = random.Normal(log_rows * dims.key_features(), 0.2f),
          .log_u = random.Normal(log_rows * dims.value_features(), 0.5f),
          .log_g = random.Uniform(log_rows * dims.decay_features(), -1.0f, 0.0f),
          .conv = random.Normal(dims.conv_channels() * std::max(0, dims.conv_width - 1))};
}

HostStatePool::HostStatePool(const LayerDims& dims, int32_t slots, int32_t max_draft) {
  const StateLayout layout = *StateLayout::Make(dims, max_draft);
  data_ = AlignedBuffer<float>(static_cast<size_t>(layout.slot_floats()) * slots);
  view_ = {.layout = layout, .data = data_.data(), .slot_count = slots};
}

absl::Span<float> HostStatePool::slot(int32_t index) {
  return absl::MakeSpan(view_.slot(index), static_cast<size_t>(view_.layout.slot_floats()));
}

DeltaRuleParams MakeDeltaRuleParams(const DeltaRuleInputs& inputs, const StatePoolView& pool, const PackedBatch& batch,
                                    std::vector<float>& output) {
  return {.pool = pool,
          .batch = batch,
          .q = inputs.q.data(),
          .k = inputs.k.data(),
          .v = inputs.v.data(),
          .g = inputs.g.data(),
          .beta = inputs.beta.data(),
          .q_stride = inputs.dims.key_features(),
          .k_stride = inputs.dims.key_features(),
          .v_stride = inputs.dims.value_features(),
          .output = output.data(),
          .max_beta = 1.0f};
}

std::vector<int32_t> CumulativeLengths(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> offsets = {0};
  for (const int32_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

std::vector<double> DeltaRuleInDouble(const DeltaRuleInputs& inputs, std::vector<double>& state) {
  const LayerDims& dims = inputs.dims;
  const int64_t K = dims.key_dim;
  const int64_t V = dims.value_dim;
  std::vector<double> output(inputs.tokens * dims.value_features(), 0.0);
  std::vector<double> u(V);
  for (int64_t t = 0; t < inputs.tokens; ++t) {
    for (int64_t hv = 0; hv < dims.value_heads; ++hv) {
      const float* q = &inputs.q[t * dims.key_features() + hv / dims.group() * K];
      const float* k = &inputs.k[t * dims.key_features() + hv / dims.group() * K];
      const float* v = &inputs.v[(t * dims.value_heads + hv) * V];
      const float* g = &inputs.g[(t * dims.value_heads + hv) * dims.decay_dim()];
      const double beta = inputs.beta[t * dims.value_heads + hv];
      double* s = &state[hv * K * V];
      double* o = &output[(t * dims.value_heads + hv) * V];
      for (int64_t j = 0; j < V; ++j) u[j] = v[j];
      for (int64_t i = 0; i < K; ++i) {
        const double decay = std::exp(double{g[dims.decays_by_channel() ? i : 0]});
        for (int64_t j = 0; j < V; ++j) {
          s[i * V + j] *= decay;
          u[j] -= s[i * V + j] * k[i];
        }
      }
      for (int64_t i = 0; i < K; ++i) {
        for (int64_t j = 0; j < V; ++j) {
          s[i * V + j] += k[i] * (beta * u[j]);
          o[j] += s[i * V + j] * q[i];
        }
      }
    }
  }
  return output;
}

}  // namespace gdn
