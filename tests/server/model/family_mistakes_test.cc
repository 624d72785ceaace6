// The golden sets would show each plausible mistake about a family: with it, a layer is outside their tolerance.
#include <deque>
#include <functional>
#include <string>

#include "base/files/safetensors.h"
#include "gtest/gtest.h"
#include "server/model/loaded_model.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/server/model/layer_sessions.h"
#include "tests/support/assert_ok.h"
#include "tests/support/compare.h"
#include "tests/support/test_backend.h"

namespace gdn::family_mistakes_test {
namespace {

constexpr double kTolerance = 1e-5;  // of golden_layers_test.cc

// The first layer's error over the prompt, served as `change` leaves the checkpoint.
double PrefillError(Backend& backend, const std::string& golden, const std::function<void(Checkpoint&)>& change) {
  const bool gguf = golden.find('/') != std::string::npos;
  const std::string recording = GoldenFolder(golden) + (gguf ? ".io.safetensors" : "/io.safetensors");
  auto checkpoint = OpenCheckpoint(GoldenFolder(golden) + (gguf ? ".gguf" : ""));
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  change(*checkpoint);
  auto model = LoadModel(backend, golden, *std::move(checkpoint));
  EXPECT_TRUE(model.ok()) << model.status();
  const auto io = SafetensorsFile::Open(recording);
  EXPECT_TRUE(io.ok()) << io.status();
  const auto sequences = static_cast<int32_t>(io->Tensor("layer.0.prefill.in")->shape[0]);
  auto sessions = LayerSessions::Make(backend, model->layers().at(0), sequences);
  EXPECT_TRUE(sessions.ok()) << sessions.status();
  const auto output = sessions->Prefill(*io->Floats("layer.0.prefill.in"));
  EXPECT_TRUE(output.ok()) << output.status();
  return RelativeNormError(*output, *io->Floats("layer.0.prefill.out"));
}

struct Mistake {
  std::string golden;
  std::string what;
  std::function<void(Checkpoint&)> make;
};

void SwapTensors(Checkpoint& checkpoint, LayerTensor a, LayerTensor b) {
  for (LayerTensors& layer : checkpoint.layers) std::swap(layer.tensors.at(a), layer.tensors.at(b));
}

TEST(FamilyMistakes, AreOutsideTheGoldenSetsTolerance) {
  const auto gate = [](GateActivation activation) {
    return [activation](Checkpoint& c) { c.config.spec.output_gate = activation; };
  };
  const auto beta_scale = [](float scale) { return [scale](Checkpoint& c) { c.config.spec.beta_scale = scale; }; };
  const auto epsilon = [](float value) { return [value](Checkpoint& c) { c.config.spec.norm_epsilon = value; }; };
  const auto tiled = [](Checkpoint& c) { c.config.spec.value_heads = ValueHeadOrder::kTiled; };
  const auto grouped = [](Checkpoint& c) { c.config.spec.value_heads = ValueHeadOrder::kGrouped; };
  const auto raw_a_log = [](Checkpoint& c) { c.config.spec.a_log = ALogConvention::kRaw; };
  const auto one_plus = [](Checkpoint& c) { c.config.spec.norm_weight = NormWeight::kOnePlus; };
  const auto swap_scales = [](Checkpoint& c) {  // of the first two blocks of rows
    static std::deque<std::string> swapped;
    for (LayerTensors& layer : c.layers) {
      TensorView& scales = layer.tensors.at(LayerTensor::kOut).scales;
      const size_t row = scales.data.size() / static_cast<size_t>(scales.shape[0]);
      swapped.push_back(std::string(scales.data.substr(row, row)) + std::string(scales.data.substr(0, row)));
      scales.data = swapped.back();
    }
  };
  const auto bounded = [](float bound) {
    return [bound](Checkpoint& c) {
      c.config.spec.decay_gate = DecayGate::kBoundedSigmoid;
      c.config.spec.decay_lower_bound = bound;
    };
  };
  const auto softplus = [](Checkpoint& c) {
    c.config.spec.decay_gate = DecayGate::kSoftplus;
    c.config.spec.decay_lower_bound = 0.0f;
  };
  const auto swap_pairs = [](Checkpoint& c) {  // f_a with g_a, and f_b with g_b
    SwapTensors(c, LayerTensor::kInA, LayerTensor::kInZ);
    SwapTensors(c, LayerTensor::kAUp, LayerTensor::kZUp);
  };
  const auto negative_a_log = [](Checkpoint& c) { c.config.spec.a_log = ALogConvention::kNegativeExp; };
  const auto transposed_bias = [](Checkpoint& c) {
    static std::deque<std::string> turned;
    const LayerDims& dims = c.config.spec.dims;
    for (LayerTensors& layer : c.layers) {
      std::string_view& data = layer.tensors.at(LayerTensor::kDtBias).data;
      std::string& to = turned.emplace_back();
      for (int32_t channel = 0; channel < dims.key_dim; ++channel) {
        for (int32_t head = 0; head < dims.value_heads; ++head) {
          to += data.substr(static_cast<size_t>(head * dims.key_dim + channel) * sizeof(float), sizeof(float));
        }
      }
      data = to;
    }
  };
  const auto swap = [](LayerTensor a, LayerTensor b) { return [a, b](Checkpoint& c) { SwapTensors(c, a, b); }; };
  const Mistake mistakes[] = {
      {"qwen3_5_1", "a sigmoid for the silu of the output gate", gate(GateActivation::kSigmoid)},
      {"qwen3_5_1", "value heads in tiled order", tiled},
      {"qwen3_5_1", "1 + w in the gated norm", one_plus},
      {"fp8_qwen3_next_1", "scales of other blocks", swap_scales},
      {"fp8_qwen3_5_1", "scales of other blocks", swap_scales},
      {"gguf_qwen35_1/f32", "value heads taken as grouped", grouped},
      {"gguf_qwen35_1/f32", "ssm_a taken as A_log", raw_a_log},
      {"gguf_qwen35_1/f32", "1 + w in the gated norm", one_plus},
      {"gguf_qwen35_1/q8_0", "value heads taken as grouped", grouped},
      {"gguf_qwen35_k_1/q4_k", "value heads taken as grouped", grouped},
      {"gguf_qwen3next_1/f32", "ssm_a taken as A_log", raw_a_log},
      {"qwen4_exp_1", "a silu for the sigmoid of the output gate", gate(GateActivation::kSilu)},
      {"qwen4_exp_1", "value heads in tiled order", tiled},
      {"qwen4_exp_1", "1 + w in the gated norm", one_plus},
      {"qwen4_exp_1", "beta with a factor 2", beta_scale(2.0f)},
      {"qwen4_exp_1", "b and a exchanged", swap(LayerTensor::kInB, LayerTensor::kInA)},
      {"olmo_hybrid_1", "beta without its factor 2", beta_scale(1.0f)},
      {"olmo_hybrid_1", "rms_norm_eps in the gated norm", epsilon(1e-6f)},
      {"olmo_hybrid_1", "a sigmoid for the silu of the output gate", gate(GateActivation::kSigmoid)},
      {"olmo_hybrid_1", "1 + w in the gated norm", one_plus},
      {"olmo_hybrid_1", "q and k exchanged", swap(LayerTensor::kInQ, LayerTensor::kInK)},
      {"olmo_hybrid_1", "the convolution of q for that of k", swap(LayerTensor::kConvQ, LayerTensor::kConvK)},
      {"olmo_hybrid_1", "z and v exchanged", swap(LayerTensor::kInZ, LayerTensor::kInV)},
      {"olmo_hybrid_1", "b and a exchanged", swap(LayerTensor::kInB, LayerTensor::kInA)},
      {"kimi_linear_1", "a bounded gate for the softplus", bounded(-5.0f)},
      {"kimi_linear_1", "a silu for the sigmoid of the output gate", gate(GateActivation::kSilu)},
      {"kimi_linear_1", "the low-rank matrices of f and g exchanged", swap_pairs},
      {"kimi_linear_1", "the second matrices of f and g exchanged", swap(LayerTensor::kAUp, LayerTensor::kZUp)},
      {"kimi_linear_1", "another family's epsilon", epsilon(1e-6f)},
      {"kimi_linear_1", "beta with a factor 2", beta_scale(2.0f)},
      {"kimi_linear_1", "1 + w in the gated norm", one_plus},
      {"kimi_linear_1", "A_log taken as -exp(A_log)", negative_a_log},
      {"kimi_linear_1", "the convolution of q for that of k", swap(LayerTensor::kConvQ, LayerTensor::kConvK)},
      {"kimi_linear_1", "dt_bias by channel and then head", transposed_bias},
      {"glm5_next_1", "a softplus for the bounded gate", softplus},
      {"glm5_next_1", "the gate with another bound", bounded(-4.0f)},
      {"glm5_next_1", "a silu for the sigmoid of the output gate", gate(GateActivation::kSilu)},
      {"glm5_next_1", "the low-rank matrices of f and g exchanged", swap_pairs},
      {"glm5_next_1", "the second matrices of f and g exchanged", swap(LayerTensor::kAUp, LayerTensor::kZUp)},
      {"glm5_next_1", "another family's epsilon", epsilon(1e-6f)},
      {"glm5_next_1", "dt_bias by channel and then head", transposed_bias},
      {"bailing_hybrid_1", "a softplus for the bounded gate", softplus},
      {"bailing_hybrid_1", "the gate with another bound", bounded(-4.0f)},
      {"bailing_hybrid_1", "a silu for the sigmoid of the output gate", gate(GateActivation::kSilu)},
      {"bailing_hybrid_1", "f and g exchanged", swap(LayerTensor::kInA, LayerTensor::kInZ)},
      {"bailing_hybrid_1", "another family's epsilon", epsilon(1e-5f)},
      {"bailing_hybrid_1", "dt_bias by channel and then head", transposed_bias},
  };
  const auto backend = MakeTestBackend(/*threads=*/0);
  for (const char* golden : {"qwen3_5_1", "fp8_qwen3_next_1", "fp8_qwen3_5_1", "qwen4_exp_1", "olmo_hybrid_1",
                             "kimi_linear_1", "glm5_next_1", "bailing_hybrid_1", "gguf_qwen35_1/f32",
                             "gguf_qwen35_1/q8_0", "gguf_qwen35_k_1/q4_k", "gguf_qwen3next_1/f32"}) {
    EXPECT_LE(PrefillError(*backend, golden, [](Checkpoint&) {}), kTolerance) << golden;
  }
  for (const Mistake& mistake : mistakes) {
    const double error = PrefillError(*backend, mistake.golden, mistake.make);
    std::printf("%-20s %-46s %.1e\n", mistake.golden.c_str(), mistake.what.c_str(), error);
    EXPECT_GT(error, kTolerance) << mistake.golden << ": " << mistake.what;
  }
}

}  // namespace
}  // namespace gdn::family_mistakes_test
