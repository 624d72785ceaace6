#include "tests/kernels/layer_problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gtest/gtest.h"

namespace gdn {

LayerProblemOptions ChannelLayerOptions() {
  return {.dims = {.key_heads = 2,
                   .value_heads = 4,
                   .key_dim = 16,
                   .value_dim = 24,
                   .conv_width = 4,
                   .hidden_size = 48,
                   .decay = DecayKind::kPerChannel},
          .layout = ProjectionLayout::kFlat,
          .output_gate = GateActivation::kSigmoid,
          .decay_lower_bound = -5.0f,
          .decay_rank = 16,
          .output_gate_rank = 12};
}

LayerProblem::LayerProblem(const LayerProblemOptions& options, int32_t slots)
    : random_(11), pool_(options.dims, slots, options.max_draft) {
  const LayerDims& dims = options.dims;
  const auto store = [this](DType dtype, const std::vector<float>& values) -> const void* {
    storage_.emplace_back(values.size() * DTypeSize(dtype));
    ConvertFromFloat(values.data(), values.size(), dtype, storage_.back().data());
    return storage_.back().data();
  };
  const auto matrix = [&](int64_t rows, int64_t cols) -> WeightMatrix {
    if (rows == 0) return {};
    const float deviation = 1.0f / std::sqrt(static_cast<float>(cols));
    return PlainMatrix(options.dtype, store(options.dtype, random_.Normal(rows * cols, deviation)), rows, cols);
  };
  const auto vector = [&](const std::vector<float>& values) {
    return static_cast<const float*>(store(DType::kF32, values));
  };
  const bool interleaved = options.layout == ProjectionLayout::kInterleaved;
  const int64_t z = dims.value_features();
  const int64_t heads = dims.value_heads;
  weights_.spec = {.dims = dims,
                   .decay_gate = options.decay_lower_bound < 0.0f ? DecayGate::kBoundedSigmoid : DecayGate::kSoftplus,
                   .decay_lower_bound = options.decay_lower_bound,
                   .beta_scale = options.beta_scale,
                   .output_gate = options.output_gate,
                   .projections = options.layout,
                   .decay_rank = options.decay_rank,
                   .output_gate_rank = options.output_gate_rank};
  weights_.in_qkv = matrix(dims.conv_channels() + (interleaved ? z : 0), dims.hidden_size);
  const int32_t z_rank = options.output_gate_rank;
  const int32_t a_rank = options.decay_rank;
  weights_.in_z = matrix(interleaved ? 0 : z_rank > 0 ? z_rank : z, dims.hidden_size);
  weights_.z_up = matrix(z_rank > 0 ? z : 0, z_rank);
  weights_.in_b = matrix(interleaved ? 2 * heads : heads, dims.hidden_size);
  weights_.in_a = matrix(interleaved ? 0 : a_rank > 0 ? a_rank : dims.decay_features(), dims.hidden_size);
  weights_.a_up = matrix(a_rank > 0 ? dims.decay_features() : 0, a_rank);
  weights_.out = matrix(dims.hidden_size, z);
  weights_.conv_weight = vector(random_.Normal(dims.conv_channels() * dims.conv_width, 0.5f));
  weights_.a_log = vector(random_.Uniform(heads, -4.0f, 0.5f));
  weights_.dt_bias = vector(random_.Normal(dims.decay_features()));
  weights_.norm_weight = vector(random_.Normal(dims.value_dim));
  if (options.tiled_out) TileOut();
}

void LayerProblem::TileOut() {
  const LayerDims& dims = weights_.spec.dims;
  const WeightMatrix grouped = weights_.out;
  const int64_t head_bytes = RowBytes(grouped.format, dims.value_dim);
  const int64_t row_bytes = RowBytes(grouped.format, grouped.cols);
  std::vector<char>& tiled = storage_.emplace_back(static_cast<size_t>(grouped.rows * row_bytes));
  for (int64_t row = 0; row < grouped.rows; ++row) {
    for (int64_t head = 0; head < dims.value_heads; ++head) {
      const int64_t block = head % dims.group() * dims.key_heads + head / dims.group();
      std::memcpy(tiled.data() + row * row_bytes + block * head_bytes,
                  static_cast<const char*>(grouped.data) + row * row_bytes + head * head_bytes,
                  static_cast<size_t>(head_bytes));
    }
  }
  weights_.out.data = tiled.data();
  weights_.tiled_out = true;
}

std::vector<float> LayerProblem::Prefill(GdnLayerRunner& runner, const std::vector<Rows>& rows) {
  PackedRows packed(rows, weights_, pool_.view());
  EXPECT_EQ(runner.Prefill(packed.step), absl::OkStatus());
  return packed.y;
}

std::vector<float> LayerProblem::Decode(GdnLayerRunner& runner, std::vector<Rows>& rows, bool draft) {
  PackedRows packed(rows, weights_, pool_.view());
  packed.step.draft = draft;
  EXPECT_EQ(runner.Decode(packed.step, packed.log_lengths.data()), absl::OkStatus());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].token_count += packed.cu_seqlens[i + 1] - packed.cu_seqlens[i];
    rows[i].log_length = packed.log_lengths[i];
  }
  return packed.y;
}

PackedRows::PackedRows(const std::vector<Rows>& rows, const LayerWeights& weights, const StatePoolView& pool) {
  const int64_t width = weights.spec.dims.hidden_size;
  for (const Rows& part : rows) {
    cu_seqlens.push_back(cu_seqlens.back() + static_cast<int32_t>(static_cast<int64_t>(part.x.size()) / width));
    slots.push_back(part.slot);
    token_counts.push_back(part.token_count);
    log_lengths.push_back(part.log_length);
    x.insert(x.end(), part.x.begin(), part.x.end());
  }
  y.resize(x.size(), -7.0f);
  step.weights = &weights;
  step.pool = pool;
  step.batch = {.sequences = static_cast<int32_t>(rows.size()), .cu_seqlens = cu_seqlens.data(), .slots = slots.data()};
  step.token_counts = token_counts.data();
  step.hidden_states = x.data();
  step.output = y.data();
}

StageInParams PackedRows::Staged(void* device, void* host) const {
  std::ranges::copy(x, static_cast<float*>(host));
  return {.device = device,
          .host = host,
          .bytes = staged_bytes(),
          .batch = step.batch,
          .token_counts = step.token_counts,
          .log_lengths = log_lengths.data(),
          .base_slots = step.base_slots};
}

}  // namespace gdn
