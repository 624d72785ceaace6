// A log decay for each key channel (KDA), where it is held to something other than a decay a head is: the references
// among one another, one decay in all channels against a decay a head, decays as strong as gates give them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/gating/gating.h"
#include "tests/kernels/decode_slots.h"
#include "tests/support/compare.h"
#include "tests/support/refusal.h"
#include "tests/support/test_backend.h"

namespace gdn::channel_decay_test {
namespace {

constexpr double kReferenceTolerance = 3e-7;  // logs and bases are rounded to float32
constexpr double kTolerance = 5e-6;           // the chunked form's, the loosest

std::vector<float> ByHead(const std::vector<float>& g, int32_t key_dim) {
  std::vector<float> by_channel;
  for (const float value : g) by_channel.insert(by_channel.end(), static_cast<size_t>(key_dim), value);
  return by_channel;
}

TEST(ChannelDecayReference, DecodesAndDraftsToWhatTheScanGives) {
  const std::unique_ptr<Backend> reference = *MakeBackend("reference");
  for (const LayerDims& dims : {ChannelDims(2, 4, 12, 20), ChannelDims(1, 1, 33, 7)}) {
    for (const float strongest : {-0.1f, -5.0f, -40.0f}) {
      SCOPED_TRACE(LayerDimsToString(dims) + " g >= " + std::to_string(strongest));
      Random random(3);
      const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 53, random, strongest);
      std::vector<double> state(dims.state_elements(), 0.0);
      const std::vector<double> expected = DeltaRuleInDouble(inputs, state);
      for (const DeltaRulePath path : {DeltaRulePath::kScan, DeltaRulePath::kDecode}) {
        DecodeSlots slots(*reference, dims, 1);
        EXPECT_LE(RelativeNormError(slots.Run(path, inputs), expected), kReferenceTolerance);
        EXPECT_LE(RelativeNormError(slots.Base(0), state), kReferenceTolerance);
      }
    }
  }
}

class ChannelDecay : public BackendTest {};
GDN_ON_BACKENDS(ChannelDecay, WithGpus({"cpu", "reference"}));

TEST_P(ChannelDecay, OfEqualChannelsIsADecayAHead) {
  const LayerDims by_head = OperatorDims(2, 4, 24, 40);
  const LayerDims by_channel = ChannelDims(2, 4, 24, 40);
  for (const DeltaRulePath path : kDeltaRulePaths) {
    if (path == DeltaRulePath::kChunk && !on_cpu()) continue;
    SCOPED_TRACE(DeltaRulePathName(path));
    Random random(5);
    const DeltaRuleInputs inputs = RandomDeltaRuleInputs(by_head, 150, random);
    DeltaRuleInputs of_channels = inputs;
    of_channels.dims = by_channel;
    of_channels.g = ByHead(inputs.g, by_head.key_dim);
    const std::vector<float> base = random.Normal(by_head.state_elements());
    DecodeSlots heads(backend(), by_head, 1), channels(backend(), by_channel, 1);
    heads.SetBase(0, base);
    channels.SetBase(0, base);
    EXPECT_LE(RelativeNormError(channels.Run(path, of_channels), heads.Run(path, inputs)), kTolerance);
    EXPECT_LE(RelativeNormError(channels.Base(0), heads.Base(0)), kTolerance);
  }
}

// Every channel at a strength of its own, up to where all is forgotten in a token, for as long as a chunk and longer:
// a factor above 1 anywhere would be e^1280 and more.
TEST_P(ChannelDecay, OfAnyStrengthIsFiniteAndRight) {
  const LayerDims dims = ChannelDims(1, 2, 32, 24);
  for (const DeltaRulePath path : kDeltaRulePaths) {
    if (path == DeltaRulePath::kChunk && !on_cpu()) continue;
    SCOPED_TRACE(DeltaRulePathName(path));
    Random random(7);
    DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 200, random, 0.0f);
    const float strengths[] = {0.0f, -1e-3f, -0.3f, -5.0f, -20.0f, -1e4f, -3e38f};
    for (size_t i = 0; i < inputs.g.size(); ++i) inputs.g[i] = strengths[i % dims.key_dim % 7];
    std::vector<double> state(dims.state_elements(), 0.0);
    const std::vector<double> expected = DeltaRuleInDouble(inputs, state);
    DecodeSlots slots(backend(), dims, 1);
    const std::vector<float> output = slots.Run(path, inputs);
    EXPECT_TRUE(AllFinite(output));
    EXPECT_LE(RelativeNormError(output, expected), kTolerance);
    EXPECT_LE(RelativeNormError(slots.Base(0), state), kTolerance);
  }
}

// Steps whose own factor is 1 in float32: 4096 of them, -8.2e-5 in all, beside channels that forget. A chunk decays by
// the sum of its own, so it loses none.
TEST_P(ChannelDecay, OfSlowChannelsAddsUpOverALongPrefill) {
  if (!on_cpu()) GTEST_SKIP() << "the CPU's chunked form";
  const LayerDims dims = ChannelDims(1, 1, 32, 8);
  Random random(11);
  DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 4096, random, 0.0f);
  for (size_t i = 0; i < inputs.g.size(); ++i) inputs.g[i] = i % 2 == 0 ? -2e-8f : -1.0f;
  std::fill(inputs.beta.begin(), inputs.beta.end(), 0.0f);
  std::vector<double> state(dims.state_elements(), 1.0);
  DecodeSlots slots(backend(), dims, 1);
  slots.SetBase(0, std::vector<float>(dims.state_elements(), 1.0f));
  DeltaRuleInDouble(inputs, state);
  slots.Run(DeltaRulePath::kChunk, inputs);
  const std::vector<float> base = slots.Base(0);
  EXPECT_LE(RelativeNormError(base, state), kTolerance);
  EXPECT_NEAR(*std::max_element(base.begin(), base.end()), 1.0 - 4096 * 2e-8, 8e-6);  // token by token it would be 1
}

// Replaces the decay of each channel by their mean, as a kernel with one decay per head would see it. Outputs differ.
TEST_P(ChannelDecay, IsNotTheMeanOfItsChannels) {
  const LayerDims dims = ChannelDims(1, 2, 32, 24);
  Random random(8);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 70, random);
  DeltaRuleInputs mean = inputs;
  for (size_t row = 0; row < mean.g.size(); row += 32) {
    float sum = 0.0f;
    for (int i = 0; i < 32; ++i) sum += inputs.g[row + i];
    std::fill_n(mean.g.begin() + static_cast<int64_t>(row), 32, sum / 32.0f);
  }
  DecodeSlots slots(backend(), dims, 2);
  const std::vector<float> output = slots.Run(DeltaRulePath::kScan, inputs, 0);
  EXPECT_GT(RelativeNormError(slots.Run(DeltaRulePath::kScan, mean, 1), output), 0.01);
}

TEST(ChannelGating, BoundedAndSoftplusAreOtherFunctions) {
  const std::unique_ptr<Backend> backend = *MakeBackend("cpu");
  const std::vector<float> a = {-3.0f, 0.0f, 2.0f, 100.0f}, b = {0.5f}, a_log = {0.3f},
                           bias = {0.1f, -0.2f, 0.0f, 0.0f};
  std::vector<float> g(4), beta(1);
  GatingParams params{.gate = DecayGate::kBoundedSigmoid,
                      .lower_bound = -5.0f,
                      .value_heads = 1,
                      .decay_dim = 4,
                      .rows = 1,
                      .a = a.data(),
                      .b = b.data(),
                      .a_log = a_log.data(),
                      .dt_bias = bias.data(),
                      .g = g.data(),
                      .beta = beta.data()};
  ASSERT_EQ(backend->Gating(params), absl::OkStatus());
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_FLOAT_EQ(g[i], static_cast<float>(-5.0 / (1.0 + std::exp(-std::exp(0.3) * (a[i] + bias[i])))));
  }
  params.gate = DecayGate::kSoftplus;
  params.lower_bound = 0.0f;
  ASSERT_EQ(backend->Gating(params), absl::OkStatus());
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_FLOAT_EQ(g[i], static_cast<float>(-std::exp(0.3) * std::log1p(std::exp(a[i] + bias[i]))));
  }
  EXPECT_FLOAT_EQ(g[3], static_cast<float>(-std::exp(0.3) * 100.0));
}

TEST(ChannelGating, IsFiniteForEveryFiniteInputAndKeepsANaN) {
  const std::unique_ptr<Backend> backend = *MakeBackend("cpu");
  constexpr float kMax = std::numeric_limits<float>::max();
  const std::vector<float> extremes = {-kMax, -1e4f, -88.0f, -1.0f, 0.0f, 20.0f, 88.0f, 1e4f, kMax, NAN};
  const int32_t width = static_cast<int32_t>(extremes.size());
  for (const float bound : {0.0f, -5.0f}) {
    for (const float rate : {-kMax, -200.0f, 0.0f, 89.0f, kMax}) {
      for (const float shift : {-kMax, 0.0f, kMax}) {
        const std::vector<float> bias(extremes.size(), shift), b = {0.0f}, a_log = {rate};
        std::vector<float> g(extremes.size()), beta(1);
        ASSERT_EQ(backend->Gating({.gate = bound < 0.0f ? DecayGate::kBoundedSigmoid : DecayGate::kSoftplus,
                                   .lower_bound = bound,
                                   .value_heads = 1,
                                   .decay_dim = width,
                                   .rows = 1,
                                   .a = extremes.data(),
                                   .b = b.data(),
                                   .a_log = a_log.data(),
                                   .dt_bias = bias.data(),
                                   .g = g.data(),
                                   .beta = beta.data()}),
                  absl::OkStatus());
        EXPECT_TRUE(std::isnan(g.back()));
        g.pop_back();
        for (const float value : g) {
          EXPECT_TRUE(std::isfinite(value));
          EXPECT_LE(value, 0.0f);
        }
      }
    }
  }
}

TEST(ChannelGating, BadParamsAreRefusedByName) {
  float data[8] = {};
  ExpectRefused<GatingParams>(ValidateGating,
                              {.gate = DecayGate::kBoundedSigmoid,
                               .lower_bound = -5.0f,
                               .value_heads = 2,
                               .decay_dim = 2,
                               .rows = 1,
                               .a = data,
                               .b = data,
                               .a_log = data,
                               .dt_bias = data,
                               .g = data,
                               .beta = data},
                              {{"lower_bound", [](auto& p) { p.lower_bound = 0.0f; }},
                               {"lower_bound", [](auto& p) { p.lower_bound = 1.0f; }},
                               {"decay_dim is 0", [](auto& p) { p.decay_dim = 0; }},
                               {"decay_dim is 1025", [](auto& p) { p.decay_dim = 1025; }}});
}

}  // namespace
}  // namespace gdn::channel_decay_test
