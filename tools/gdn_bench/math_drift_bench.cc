#include "tools/gdn_bench/math_drift_bench.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/layer/gdn_layer.h"
#include "kernels/projection/random_weights.h"
#include "kernels/slot_access.h"
#include "tools/gdn_bench/drift_rows.h"
#include "tools/gdn_bench/kernels/kernel_case.h"

namespace gdn::bench {
namespace {

class RandomNumbers {
 public:
  explicit RandomNumbers(uint64_t seed) : generator_(seed) {}

  std::vector<float> Normal(int64_t count, float deviation) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = deviation * normal_(generator_);
    return values;
  }
  std::vector<float> Uniform(int64_t count, float least, float most) {
    std::vector<float> values(static_cast<size_t>(count));
    std::uniform_real_distribution<float> uniform(least, most);
    for (float& value : values) value = uniform(generator_);
    return values;
  }

 private:
  std::mt19937_64 generator_;
  std::normal_distribution<float> normal_;
};

// A layer in host memory, where the CPU backend reads it.
struct HostLayer {
  std::vector<RandomWeights> matrices;
  std::vector<float> conv, a_log, dt_bias, norm;
  LayerWeights weights;
};

HostLayer MakeLayer(const LayerDims& dims, WeightFormat format, RandomNumbers& source) {
  HostLayer layer;
  layer.matrices.reserve(5);
  const auto matrix = [&](int64_t rows, int64_t cols) {
    const auto seed = static_cast<uint32_t>(layer.matrices.size() + 1);
    return layer.matrices.emplace_back(MakeRandomWeights(format, rows, cols, seed)).matrix();
  };
  LayerWeights& w = layer.weights;
  w.spec.dims = dims;
  w.in_qkv = matrix(dims.conv_channels(), dims.hidden_size);
  w.in_z = matrix(dims.value_features(), dims.hidden_size);
  w.in_b = matrix(dims.value_heads, dims.hidden_size);
  w.in_a = matrix(dims.value_heads, dims.hidden_size);
  w.out = matrix(dims.hidden_size, dims.value_features());
  layer.conv = source.Normal(dims.conv_channels() * dims.conv_width, 0.5f);
  layer.a_log = source.Uniform(dims.value_heads, -4.0f, 1.0f);
  layer.dt_bias = source.Normal(dims.value_heads, 1.0f);
  layer.norm = source.Normal(dims.value_dim, 1.0f);
  w.conv_weight = layer.conv.data();
  w.a_log = layer.a_log.data();
  w.dt_bias = layer.dt_bias.data();
  w.norm_weight = layer.norm.data();
  return layer;
}

// One session that decodes through the layer in one math.
class MathSession {
 public:
  static absl::StatusOr<std::unique_ptr<MathSession>> Make(ProductMath math, const LayerWeights& weights) {
    GDN_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, MakeCpuBackend({.math = math}));
    auto made = std::unique_ptr<MathSession>(new MathSession(std::move(backend), weights));
    made->pool_.slot_count = 2;  // the second is where the state is folded to be looked at
    GDN_ASSIGN_OR_RETURN(made->pool_.layout, StateLayout::Make(weights.spec.dims, kDriftCallTokens));
    GDN_ASSIGN_OR_RETURN(made->memory_,
                         DeviceBuffer::Make(*made->backend_, 2 * static_cast<size_t>(made->pool_.layout.slot_bytes())));
    made->pool_.data = made->memory_.floats();
    return made;
  }

  absl::StatusOr<std::vector<float>> Decode(const std::vector<float>& hidden_states, int32_t tokens) {
    const int32_t starts[] = {0, tokens};
    const int32_t slot = 0;
    std::vector<float> output(hidden_states.size());
    LayerStep step;
    step.weights = &weights_;
    step.pool = pool_;
    step.batch = {.sequences = 1, .cu_seqlens = starts, .slots = &slot};
    step.token_counts = &token_count_;
    step.kind = InputKind::kHiddenStates;
    step.hidden_states = hidden_states.data();
    step.output = output.data();
    GDN_RETURN_IF_ERROR(runner_.Decode(step, &log_length_));
    token_count_ += tokens;
    return output;
  }

  absl::StatusOr<std::vector<float>> State() {
    const int32_t from = 0, to = 1;
    GDN_RETURN_IF_ERROR(
        backend_->MaterializeState({.pool = pool_, .count = 1, .src = &from, .dst = &to, .log_lengths = &log_length_}));
    GDN_ASSIGN_OR_RETURN(SlotImage image, ReadSlot(*backend_, pool_, to, /*log_length=*/0, /*token_count=*/0));
    return std::move(image.base);
  }

 private:
  MathSession(std::unique_ptr<Backend> backend, const LayerWeights& weights)
      : backend_(std::move(backend)), weights_(weights), runner_(*backend_) {}

  std::unique_ptr<Backend> backend_;
  LayerWeights weights_;
  GdnLayerRunner runner_;
  DeviceBuffer memory_;
  StatePoolView pool_;
  int64_t token_count_ = 0;
  int32_t log_length_ = 0;
};

absl::Status Measure(WeightFormat format, const DriftOptions& options, std::vector<MathDriftRow>& rows) {
  const LayerDims dims = BenchLayerDims();
  RandomNumbers source(options.seed);
  const HostLayer layer = MakeLayer(dims, format, source);
  GDN_ASSIGN_OR_RETURN(const std::unique_ptr<MathSession> exact, MathSession::Make(ProductMath::kExact, layer.weights));
  GDN_ASSIGN_OR_RETURN(const std::unique_ptr<MathSession> int8, MathSession::Make(ProductMath::kInt8, layer.weights));
  Difference outputs;
  int64_t row = NextDriftRow(0, options.tokens);
  for (int64_t done = 0; done < options.tokens;) {
    const auto tokens = static_cast<int32_t>(std::min<int64_t>(kDriftCallTokens, row - done));
    const std::vector<float> x = source.Normal(int64_t{tokens} * dims.hidden_size, 1.0f);
    GDN_ASSIGN_OR_RETURN(const std::vector<float> expected, exact->Decode(x, tokens));
    GDN_ASSIGN_OR_RETURN(const std::vector<float> rounded, int8->Decode(x, tokens));
    done += tokens;
    if (done > row - kDriftOutputs) outputs.Add(rounded.data(), expected.data(), static_cast<int64_t>(x.size()));
    if (done < row) continue;
    GDN_ASSIGN_OR_RETURN(const std::vector<float> expected_state, exact->State());
    GDN_ASSIGN_OR_RETURN(const std::vector<float> rounded_state, int8->State());
    Difference states;
    states.Add(rounded_state.data(), expected_state.data(), dims.state_elements());
    rows.push_back({format, done, {.output = outputs.relative(), .state = states.relative()}});
    outputs = {};
    row = NextDriftRow(done, options.tokens);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<MathDriftRow>> RunMathDriftBench(const DriftOptions& options) {
  std::vector<MathDriftRow> rows;
  for (const WeightFormat format : {WeightFormat::kQ8_0, WeightFormat::kQ4_K}) {
    GDN_RETURN_IF_ERROR(Measure(format, options, rows));
  }
  return rows;
}

std::string MathDriftTable(const std::vector<MathDriftRow>& rows) {
  std::string table = "| weights | tokens | output, int8 | state, int8 |\n|---|--:|--:|--:|\n";
  for (const MathDriftRow& row : rows) {
    absl::StrAppendFormat(&table, "| %s | %d | %.1e | %.1e |\n", std::string(WeightFormatName(row.weights)), row.tokens,
                          row.errors.output, row.errors.state);
  }
  return table;
}

nlohmann::ordered_json MathDriftJson(const std::vector<MathDriftRow>& rows) {
  nlohmann::ordered_json json;
  for (const MathDriftRow& row : rows) {
    json.push_back({{"weights", std::string(WeightFormatName(row.weights))},
                    {"tokens", row.tokens},
                    {"output_error", row.errors.output},
                    {"state_error", row.errors.state}});
  }
  return json;
}

}  // namespace gdn::bench
