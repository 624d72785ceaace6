#include "kernels/gating/gating.h"

#include <cmath>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"
#include "tests/support/test_backend.h"

namespace gdn::gating_test {
namespace {

struct Gates {
  std::vector<float> g, beta;
};

struct Inputs {
  ALogConvention convention = ALogConvention::kRaw;
  float beta_scale = 1.0f;
  std::vector<float> a = {}, b = {}, a_log = {}, dt_bias = {};
};

template <typename Operator>
Gates Apply(const Inputs& inputs, Operator run) {
  Gates gates{std::vector<float>(inputs.a.size()), std::vector<float>(inputs.a.size())};
  const int32_t heads = static_cast<int32_t>(inputs.a_log.size());
  run(GatingParams{.convention = inputs.convention,
                   .beta_scale = inputs.beta_scale,
                   .value_heads = heads,
                   .rows = static_cast<int64_t>(inputs.a.size()) / heads,
                   .a = inputs.a.data(),
                   .b = inputs.b.data(),
                   .a_log = inputs.a_log.data(),
                   .dt_bias = inputs.dt_bias.data(),
                   .g = gates.g.data(),
                   .beta = gates.beta.data()});
  return gates;
}

class Gating : public BackendTest {
 protected:
  Gates Run(const Inputs& inputs) {
    return Apply(inputs, [this](const GatingParams& params) { EXPECT_EQ(backend().Gating(params), absl::OkStatus()); });
  }
};
GDN_ON_EVERY_BACKEND(Gating);

TEST_P(Gating, GivesTheValuesOfTheFormula) {
  const Gates gates = Run({.a = {0.0f, 1.0f, 30.0f},
                           .b = {0.0f, 2.0f, -2.0f},
                           .a_log = {0.0f, std::log(2.0f), 0.0f},
                           .dt_bias = {0.0f, 0.0f, 1.0f}});
  EXPECT_FLOAT_EQ(gates.g[0], -std::log(2.0f));
  EXPECT_FLOAT_EQ(gates.g[1], -2.0f * std::log1p(std::exp(1.0f)));
  EXPECT_FLOAT_EQ(gates.g[2], -31.0f);
  EXPECT_FLOAT_EQ(gates.beta[0], 0.5f);
  EXPECT_FLOAT_EQ(gates.beta[1], 1.0f / (1.0f + std::exp(-2.0f)));
  EXPECT_FLOAT_EQ(gates.beta[2], 1.0f / (1.0f + std::exp(2.0f)));
}

TEST_P(Gating, BetaIsScaledForNegativeEigenvalues) {
  Inputs inputs{.a = {0.0f, 0.0f}, .b = {1.5f, -0.3f}, .a_log = {0.0f, 0.0f}, .dt_bias = {0.0f, 0.0f}};
  const std::vector<float> once = Run(inputs).beta;
  inputs.beta_scale = 2.0f;
  EXPECT_THAT(Run(inputs).beta, testing::ElementsAre(2.0f * once[0], 2.0f * once[1]));
}

// A norm over all of them would see the largest alone.
TEST_P(Gating, EveryElementIsRightBesideAnyOther) {
  Random random(1);
  constexpr int64_t kHeads = 5;
  for (const ALogConvention convention : {ALogConvention::kRaw, ALogConvention::kNegativeExp}) {
    Inputs inputs{.convention = convention,
                  .a = random.Normal(67 * kHeads, 30.0f),
                  .b = random.Normal(67 * kHeads, 30.0f),
                  .a_log = random.Normal(kHeads),
                  .dt_bias = random.Normal(kHeads)};
    if (convention == ALogConvention::kNegativeExp) {
      for (float& rate : inputs.a_log) rate = -std::exp(rate);
    }
    inputs.a[0] = 1e30f;  // softplus must not overflow
    inputs.a[1] = -1e30f;
    const Gates actual = Run(inputs), expected = Apply(inputs, GatingReference);
    EXPECT_TRUE(AllFinite(actual.g));
    for (size_t i = 0; i < actual.g.size(); ++i) {
      EXPECT_NEAR(actual.g[i], expected.g[i], 2e-6 * std::abs(expected.g[i]) + 1e-30) << "a = " << inputs.a[i];
    }
  }
}

TEST_P(Gating, TheTwoConventionsAgree) {
  Inputs inputs{.a = {-3.0f, 0.5f, 40.0f}, .b = {0, 0, 0}, .a_log = {-1.0f, 0.0f, 1.5f}, .dt_bias = {0.1f, 0.2f, 0.3f}};
  const std::vector<float> raw = Run(inputs).g;
  inputs.convention = ALogConvention::kNegativeExp;
  for (float& value : inputs.a_log) value = -std::exp(value);  // correctly rounded; an operator's may be one bit off
  const std::vector<float> negative_exp = Run(inputs).g;
  for (size_t i = 0; i < raw.size(); ++i) EXPECT_FLOAT_EQ(negative_exp[i], raw[i]);
}

TEST_P(Gating, SoftplusDoesNotOverflowAboveEightyEight) {
  const std::vector<float> a = {88.0f, 89.0f, 100.0f, 200.0f, 1e4f, 3e38f};
  const std::vector<float> zeros(a.size(), 0.0f);
  const Gates gates = Run({.a = a, .b = zeros, .a_log = zeros, .dt_bias = zeros});
  for (size_t i = 0; i < a.size(); ++i) EXPECT_FLOAT_EQ(gates.g[i], -a[i]);
}

TEST_P(Gating, IsFiniteAndNeverPositiveForEveryFiniteInput) {
  const float kMax = std::numeric_limits<float>::max();
  const std::vector<float> extremes = {-kMax, -1e4f, -200.0f, -88.0f, -20.0f, 0.0f, 20.0f, 88.0f, 200.0f, 1e4f, kMax};
  const std::vector<float> rates = {-kMax, -200.0f, 0.0f, 89.0f, 1e4f, kMax};
  for (const float bias : {-kMax, 0.0f, kMax}) {
    Inputs inputs{.a_log = rates, .dt_bias = std::vector<float>(rates.size(), bias)};
    for (const float input : extremes) inputs.a.insert(inputs.a.end(), rates.size(), input);
    inputs.b = inputs.a;
    const Gates gates = Run(inputs);
    for (size_t i = 0; i < inputs.a.size(); ++i) {
      EXPECT_TRUE(std::isfinite(gates.g[i])) << inputs.a[i] << " " << rates[i % rates.size()] << " " << bias;
      EXPECT_LE(gates.g[i], 0.0f);
      EXPECT_THAT(gates.beta[i], testing::AllOf(testing::Ge(0.0f), testing::Le(1.0f)));
    }
  }
}

TEST_P(Gating, NaNStaysInItsElement) {
  const Gates gates =
      Run({.a = {0.0f, NAN, 0.0f, 0.0f}, .b = {0.0f, 0.0f, NAN, 0.0f}, .a_log = {0, 0}, .dt_bias = {0, 0}});
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(std::isnan(gates.g[i]), i == 1);
    EXPECT_EQ(std::isnan(gates.beta[i]), i == 2);
  }
}

// For both conventions, both gates, and decays by head and by channel. Five heads are at least a vector and a lane.
TEST_P(Gating, NaNInAnyInputIsNaNInTheDecaysThatItGoesInto) {
  constexpr int32_t kHeads = 5, kLost = 2;
  for (const int32_t width : {1, 9}) {
    for (const DecayGate gate : {DecayGate::kSoftplus, DecayGate::kBoundedSigmoid}) {
      for (const ALogConvention convention : {ALogConvention::kRaw, ALogConvention::kNegativeExp}) {
        for (const char* where : {"a", "a_log", "dt_bias"}) {
          std::vector<float> a(kHeads * width, 0.5f), b(kHeads, 0.5f), a_log(kHeads, -0.5f), dt_bias(kHeads * width);
          const bool whole_head = std::string(where) == "a_log";
          (whole_head ? a_log[kLost] : where[0] == 'a' ? a[kLost * width] : dt_bias[kLost * width]) = NAN;
          Gates gates{std::vector<float>(a.size()), std::vector<float>(b.size())};
          EXPECT_EQ(backend().Gating({.convention = convention,
                                      .gate = gate,
                                      .lower_bound = gate == DecayGate::kBoundedSigmoid ? -5.0f : 0.0f,
                                      .value_heads = kHeads,
                                      .decay_dim = width,
                                      .rows = 1,
                                      .a = a.data(),
                                      .b = b.data(),
                                      .a_log = a_log.data(),
                                      .dt_bias = dt_bias.data(),
                                      .g = gates.g.data(),
                                      .beta = gates.beta.data()}),
                    absl::OkStatus());
          for (int32_t i = 0; i < kHeads * width; ++i) {
            EXPECT_EQ(std::isnan(gates.g[i]), whole_head ? i / width == kLost : i == kLost * width)
                << where << " " << i << " of " << width << ", gate " << static_cast<int>(gate);
          }
        }
      }
    }
  }
}

TEST_P(Gating, AnInfinitelySmallRateKeepsEverything) {
  const Gates gates = Run({.a = {3.0f}, .b = {0.0f}, .a_log = {-INFINITY}, .dt_bias = {1.0f}});
  EXPECT_EQ(gates.g[0], 0.0f);
}

TEST(GatingParams, BadOnesAreRefusedByName) {
  float data[4] = {};
  ExpectRefused<GatingParams>(
      ValidateGating,
      {.value_heads = 2, .rows = 1, .a = data, .b = data, .a_log = data, .dt_bias = data, .g = data, .beta = data},
      {{"dt_bias is null", [](auto& p) { p.dt_bias = nullptr; }},
       {"beta_scale is 0", [](auto& p) { p.beta_scale = 0.0f; }},
       {"value_heads is 0", [](auto& p) { p.value_heads = 0; }}});
}

}  // namespace
}  // namespace gdn::gating_test
