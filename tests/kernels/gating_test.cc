#include "kernels/gating/gating.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"
#include "tests/support/test_backend.h"

namespace gdn {
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
  for (float& value : inputs.a_log) value = -std::exp(value);
  EXPECT_TRUE(BitEqual(Run(inputs).g, raw));
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
    EXPECT_EQ(std::isnan(gates.g[i]), i == 1 && on_cpu());  // a GPU's maximum of NaN and 0 is 0
    EXPECT_EQ(std::isnan(gates.beta[i]), i == 2);
  }
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
}  // namespace gdn
