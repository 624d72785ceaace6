#include "kernels/gating/gating.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace gdn {
namespace {

constexpr double kTolerance = 1e-6;

struct Gates {
  std::vector<float> g, beta;
};

template <typename Operator>
Gates Apply(ALogConvention convention, const std::vector<float>& a, const std::vector<float>& b,
            const std::vector<float>& a_log, const std::vector<float>& dt_bias, Operator run) {
  Gates gates{std::vector<float>(a.size()), std::vector<float>(a.size())};
  const int32_t heads = static_cast<int32_t>(a_log.size());
  run(GatingParams{.convention = convention,
                   .value_heads = heads,
                   .rows = static_cast<int64_t>(a.size()) / heads,
                   .a = a.data(),
                   .b = b.data(),
                   .a_log = a_log.data(),
                   .dt_bias = dt_bias.data(),
                   .g = gates.g.data(),
                   .beta = gates.beta.data()});
  return gates;
}

void OnCpu(const GatingParams& params) {
  ThreadPool pool(2);
  const absl::Status status = GatingCpu(params, pool);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Gating, GivesTheValuesOfTheFormula) {
  const Gates gates = Apply(ALogConvention::kRaw, {0.0f, 1.0f, 30.0f}, {0.0f, 2.0f, -2.0f},
                            {0.0f, std::log(2.0f), 0.0f}, {0.0f, 0.0f, 1.0f}, OnCpu);
  EXPECT_FLOAT_EQ(gates.g[0], -std::log(2.0f));
  EXPECT_FLOAT_EQ(gates.g[1], -2.0f * std::log1p(std::exp(1.0f)));
  EXPECT_FLOAT_EQ(gates.g[2], -31.0f);
  EXPECT_FLOAT_EQ(gates.beta[0], 0.5f);
  EXPECT_FLOAT_EQ(gates.beta[1], 1.0f / (1.0f + std::exp(-2.0f)));
  EXPECT_FLOAT_EQ(gates.beta[2], 1.0f / (1.0f + std::exp(2.0f)));
}

TEST(Gating, MatchesReferenceInBothConventionsUpToSaturation) {
  Random random(1);
  constexpr int32_t kHeads = 7;
  for (float spread : {0.1f, 1.0f, 10.0f, 200.0f, 1e4f}) {
    const std::vector<float> a = random.Normal(kHeads * 100, spread);
    const std::vector<float> b = random.Normal(kHeads * 100, spread);
    const std::vector<float> dt_bias = random.Normal(kHeads);
    const std::vector<float> a_log = random.Uniform(kHeads, -5.0f, 3.0f);
    std::vector<float> ssm_a = a_log;
    for (float& value : ssm_a) value = -std::exp(value);
    for (ALogConvention convention : {ALogConvention::kRaw, ALogConvention::kNegativeExp}) {
      const std::vector<float>& rates = convention == ALogConvention::kRaw ? a_log : ssm_a;
      const Gates actual = Apply(convention, a, b, rates, dt_bias, OnCpu);
      const Gates expected = Apply(convention, a, b, rates, dt_bias, GatingReference);
      EXPECT_LE(RelativeNormError(actual.g, expected.g), kTolerance) << spread;
      EXPECT_LE(RelativeNormError(actual.beta, expected.beta), kTolerance) << spread;
    }
  }
}

TEST(Gating, TheTwoConventionsAgree) {
  const std::vector<float> a = {-3.0f, 0.5f, 40.0f}, b = {0.0f, 0.0f, 0.0f}, dt_bias = {0.1f, 0.2f, 0.3f};
  const std::vector<float> a_log = {-1.0f, 0.0f, 1.5f};
  std::vector<float> ssm_a = a_log;
  for (float& value : ssm_a) value = -std::exp(value);
  EXPECT_TRUE(BitEqual(Apply(ALogConvention::kRaw, a, b, a_log, dt_bias, OnCpu).g,
                       Apply(ALogConvention::kNegativeExp, a, b, ssm_a, dt_bias, OnCpu).g));
}

TEST(KnownMistakes, SoftplusDoesNotOverflowAboveEightyEight) {
  const std::vector<float> a = {88.0f, 89.0f, 100.0f, 200.0f, 1e4f, 3e38f};
  const std::vector<float> zeros(a.size(), 0.0f);
  const Gates gates = Apply(ALogConvention::kRaw, a, zeros, zeros, zeros, OnCpu);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_FLOAT_EQ(gates.g[i], -a[i]);
}

TEST(Gating, IsFiniteAndNeverPositiveForEveryFiniteInput) {
  const float kMax = std::numeric_limits<float>::max();
  const std::vector<float> extremes = {-kMax, -1e4f, -200.0f, -88.0f, -20.0f, 0.0f, 20.0f, 88.0f, 200.0f, 1e4f, kMax};
  for (float bias : {-kMax, 0.0f, kMax}) {
    for (float a_log : {-kMax, -200.0f, 0.0f, 89.0f, 1e4f, kMax}) {
      for (float input : extremes) {
        const Gates raw = Apply(ALogConvention::kRaw, {input}, {input}, {a_log}, {bias}, OnCpu);
        EXPECT_TRUE(AllFinite(raw.g) && AllFinite(raw.beta)) << input << " " << a_log << " " << bias;
        EXPECT_LE(raw.g[0], 0.0f);
        EXPECT_THAT(raw.beta[0], testing::AllOf(testing::Ge(0.0f), testing::Le(1.0f)));
      }
    }
  }
}

TEST(Gating, NaNStaysInItsElement) {
  const std::vector<float> zeros(4, 0.0f);
  const Gates gates =
      Apply(ALogConvention::kRaw, {0.0f, NAN, 0.0f, 0.0f}, {0.0f, 0.0f, NAN, 0.0f}, {0.0f, 0.0f}, zeros, OnCpu);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(std::isnan(gates.g[i]), i == 1);
    EXPECT_EQ(std::isnan(gates.beta[i]), i == 2);
  }
}

TEST(Gating, MissingTensorsAreRefusedByName) {
  float data[4] = {};
  GatingParams params{
      .value_heads = 2, .rows = 1, .a = data, .b = data, .a_log = data, .dt_bias = nullptr, .g = data, .beta = data};
  EXPECT_THAT(std::string(ValidateGating(params).message()), testing::HasSubstr("dt_bias is null"));
  params.value_heads = 0;
  EXPECT_THAT(std::string(ValidateGating(params).message()), testing::HasSubstr("value_heads is 0"));
}

}  // namespace
}  // namespace gdn
