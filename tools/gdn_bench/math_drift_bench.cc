#include "tools/gdn_bench/math_drift_bench.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/gpu_backend/gpu_backend.h"
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

// A layer in host memory.
struct HostLayer {
  std::vector<RandomWeights> matrices;
  std::vector<float> conv, a_log, dt_bias, norm;
  LayerWeights weights;
};

// Products of int8 numbers are measured on the CPU. It has none of fp16 numbers, so these are measured on a GPU.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(ProductMath math, const MathDriftOptions& options) {
  if (options.math == ProductMath::kInt8) return MakeCpuBackend({.math = math});
  return MakeGpuBackend({.device = options.gpu_device, .math = math});
}

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
  static absl::StatusOr<std::unique_ptr<MathSession>> Make(std::unique_ptr<Backend> backend, const HostLayer& layer) {
    auto made = std::unique_ptr<MathSession>(new MathSession(std::move(backend), layer.weights));
    made->pool_.slot_count = 2;  // the second is where the state is folded to be looked at
    GDN_ASSIGN_OR_RETURN(made->pool_.layout, StateLayout::Make(layer.weights.spec.dims, kDriftCallTokens));
    const size_t slot_bytes = static_cast<size_t>(made->pool_.layout.slot_bytes());
    GDN_ASSIGN_OR_RETURN(made->memory_, DeviceBuffer::Make(*made->backend_, 2 * slot_bytes));
    made->pool_.data = made->memory_.floats();
    const size_t call_bytes =
        static_cast<size_t>(kDriftCallTokens * layer.weights.spec.dims.hidden_size) * sizeof(float);
    GDN_ASSIGN_OR_RETURN(made->input_, DeviceBuffer::Make(*made->backend_, call_bytes));
    GDN_ASSIGN_OR_RETURN(made->output_, DeviceBuffer::Make(*made->backend_, call_bytes));
    GDN_RETURN_IF_ERROR(made->PlaceWeights(layer));
    return made;
  }

  absl::StatusOr<std::vector<float>> Decode(const std::vector<float>& hidden_states, int32_t tokens) {
    const int32_t starts[] = {0, tokens};
    const int32_t slot = 0;
    std::vector<float> output(hidden_states.size());
    const size_t bytes = output.size() * sizeof(float);
    GDN_RETURN_IF_ERROR(backend_->CopyIn(input_.data(), hidden_states.data(), bytes));
    LayerStep step;
    step.weights = &weights_;
    step.pool = pool_;
    step.batch = {.sequences = 1, .cu_seqlens = starts, .slots = &slot};
    step.token_counts = &token_count_;
    step.kind = InputKind::kHiddenStates;
    step.hidden_states = input_.floats();
    step.output = output_.floats();
    GDN_RETURN_IF_ERROR(runner_.Decode(step, &log_length_));
    token_count_ += tokens;
    GDN_RETURN_IF_ERROR(backend_->CopyOut(output.data(), output_.data(), bytes));
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

  absl::StatusOr<void*> Place(const void* data, size_t bytes) {
    GDN_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Make(*backend_, bytes));
    GDN_RETURN_IF_ERROR(backend_->CopyIn(buffer.data(), data, bytes));
    return placed_.emplace_back(std::move(buffer)).data();
  }
  absl::Status PlaceWeights(const HostLayer& layer) {
    WeightMatrix* const matrices[] = {&weights_.in_qkv, &weights_.in_z, &weights_.in_b, &weights_.in_a, &weights_.out};
    for (size_t i = 0; i < layer.matrices.size(); ++i) {
      WeightMatrix matrix = layer.matrices[i].matrix();
      matrices[i]->integer_halves = backend_->info().IntegerHalvesFor(matrix.format);
      const std::vector<float> scales = backend_->info().RowScalesFor(matrix);
      if (!scales.empty()) {
        matrix.scales = scales.data();
        GDN_ASSIGN_OR_RETURN(void* const placed, Place(scales.data(), scales.size() * sizeof(float)));
        matrices[i]->scales = static_cast<const float*>(placed);
      }
      GDN_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                           DeviceBuffer::Make(*backend_, static_cast<size_t>(backend_->WeightBytes(matrix))));
      GDN_RETURN_IF_ERROR(backend_->CopyWeightsIn(buffer.data(), matrix));
      matrices[i]->data = placed_.emplace_back(std::move(buffer)).data();
    }
    const std::pair<const float**, const std::vector<float>*> vectors[] = {{&weights_.conv_weight, &layer.conv},
                                                                           {&weights_.a_log, &layer.a_log},
                                                                           {&weights_.dt_bias, &layer.dt_bias},
                                                                           {&weights_.norm_weight, &layer.norm}};
    for (const auto& [to, from] : vectors) {
      GDN_ASSIGN_OR_RETURN(void* const placed, Place(from->data(), from->size() * sizeof(float)));
      *to = static_cast<const float*>(placed);
    }
    return absl::OkStatus();
  }

  std::unique_ptr<Backend> backend_;
  LayerWeights weights_;
  std::vector<DeviceBuffer> placed_;
  GdnLayerRunner runner_;
  DeviceBuffer memory_, input_, output_;
  StatePoolView pool_;
  int64_t token_count_ = 0;
  int32_t log_length_ = 0;
};

absl::Status Measure(WeightFormat format, const MathDriftOptions& options, std::vector<MathDriftRow>& rows) {
  const LayerDims dims = BenchLayerDims();
  RandomNumbers source(options.seed);
  const HostLayer layer = MakeLayer(dims, format, source);
  GDN_ASSIGN_OR_RETURN(std::unique_ptr<Backend> of_exact, MakeBackend(ProductMath::kExact, options));
  GDN_ASSIGN_OR_RETURN(std::unique_ptr<Backend> of_math, MakeBackend(options.math, options));
  GDN_ASSIGN_OR_RETURN(const std::unique_ptr<MathSession> exact, MathSession::Make(std::move(of_exact), layer));
  GDN_ASSIGN_OR_RETURN(const std::unique_ptr<MathSession> rounding, MathSession::Make(std::move(of_math), layer));
  Difference outputs;
  int64_t row = NextDriftRow(0, options.tokens);
  for (int64_t done = 0; done < options.tokens;) {
    const auto tokens = static_cast<int32_t>(std::min<int64_t>(kDriftCallTokens, row - done));
    const std::vector<float> x = source.Normal(int64_t{tokens} * dims.hidden_size, 1.0f);
    GDN_ASSIGN_OR_RETURN(const std::vector<float> expected, exact->Decode(x, tokens));
    GDN_ASSIGN_OR_RETURN(const std::vector<float> rounded, rounding->Decode(x, tokens));
    done += tokens;
    if (done > row - kDriftOutputs) outputs.Add(rounded.data(), expected.data(), static_cast<int64_t>(x.size()));
    if (done < row) continue;
    GDN_ASSIGN_OR_RETURN(const std::vector<float> expected_state, exact->State());
    GDN_ASSIGN_OR_RETURN(const std::vector<float> rounded_state, rounding->State());
    Difference states;
    states.Add(rounded_state.data(), expected_state.data(), dims.state_elements());
    rows.push_back({format, done, {.output = outputs.relative(), .state = states.relative()}});
    outputs = {};
    row = NextDriftRow(done, options.tokens);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<MathDriftRow>> RunMathDriftBench(const MathDriftOptions& options) {
  std::vector<MathDriftRow> rows;
  const bool int8 = options.math == ProductMath::kInt8;
  for (const WeightFormat format :
       {int8 ? WeightFormat::kQ8_0 : WeightFormat::kBF16, int8 ? WeightFormat::kQ4_K : WeightFormat::kF32}) {
    GDN_RETURN_IF_ERROR(Measure(format, options, rows));
  }
  return rows;
}

std::string MathDriftTable(const std::vector<MathDriftRow>& rows) {
  std::string table = "| weights | tokens | output | state |\n|---|--:|--:|--:|\n";
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
