#include "kernels/gated_rmsnorm/gated_rmsnorm.h"

#include <cmath>

#include "gmock/gmock.h"
#include "tests/support/compare.h"
#include "tests/support/delta_rule_problem.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"
#include "tests/support/test_backend.h"

namespace gdn::gated_rmsnorm_test {
namespace {

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double Silu(double x) { return x * Sigmoid(x); }

class GatedRmsNorm : public BackendTest {
 protected:
  // Rows as long as `weight`.
  void Run(const std::vector<float>& x, const std::vector<float>& z, const std::vector<float>& weight, float* y,
           GateActivation gate = GateActivation::kSilu) {
    const int64_t dim = static_cast<int64_t>(weight.size());
    EXPECT_EQ(backend().GatedRmsNorm({.gate = gate,
                                      .value_dim = static_cast<int32_t>(dim),
                                      .rows = static_cast<int64_t>(x.size()) / dim,
                                      .x = x.data(),
                                      .z = z.data(),
                                      .weight = weight.data(),
                                      .y = y}),
              absl::OkStatus());
  }
  std::vector<float> Run(const std::vector<float>& x, const std::vector<float>& z, const std::vector<float>& weight,
                         GateActivation gate = GateActivation::kSilu) {
    std::vector<float> y(x.size());
    Run(x, z, weight, y.data(), gate);
    return y;
  }
};
GDN_ON_EVERY_BACKEND(GatedRmsNorm);

TEST_P(GatedRmsNorm, NormalisesBeforeTheGateWithThePlainWeight) {
  // mean square of {3, 4} is 12.5
  const std::vector<float> y = Run({3.0f, 4.0f}, {1.0f, -2.0f}, {0.5f, 2.0f});
  const double factor = 1.0 / std::sqrt(12.5 + 1e-6);
  EXPECT_NEAR(y[0], 0.5 * 3.0 * factor * Silu(1.0), 1e-6);
  EXPECT_NEAR(y[1], 2.0 * 4.0 * factor * Silu(-2.0), 1e-6);
}

TEST_P(GatedRmsNorm, IsFiniteForTheLargestGatesAndForZeroRows) {
  const std::vector<float> z = {3e38f, -3e38f, 100.0f, -100.0f, 0.0f, -104.0f, 88.0f, -88.0f};
  const std::vector<float> ones(8, 1.0f);
  const std::vector<float> y = Run(ones, z, ones);
  EXPECT_TRUE(AllFinite(y));
  EXPECT_FLOAT_EQ(y[0], 3e38f / std::sqrt(1.0f + 1e-6f));
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_THAT(Run(std::vector<float>(8, 0.0f), z, ones), testing::Each(0.0f));
}

TEST_P(GatedRmsNorm, RefusesTermsThatItCannotWrite) {
  if (GetParam() == "host32" || GetParam() == "gpu") GTEST_SKIP() << "writes them";
  const std::vector<float> ones(8, 1.0f);
  std::vector<float> y(8);
  std::vector<uint16_t> terms(24);
  const GatedRmsNormParams params{.value_dim = 8,
                                  .rows = 1,
                                  .x = ones.data(),
                                  .z = ones.data(),
                                  .weight = ones.data(),
                                  .y = y.data(),
                                  .terms = terms.data()};
  EXPECT_EQ(backend().GatedRmsNorm(params).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(y, testing::Each(0.0f));
}

TEST_P(GatedRmsNorm, MayGateBySigmoid) {
  const std::vector<float> y = Run({3.0f, 4.0f}, {1.0f, -2.0f}, {0.5f, 2.0f}, GateActivation::kSigmoid);
  const double factor = 1.0 / std::sqrt(12.5 + 1e-6);
  EXPECT_NEAR(y[0], 0.5 * 3.0 * factor * Sigmoid(1.0), 1e-6);
  EXPECT_NEAR(y[1], 2.0 * 4.0 * factor * Sigmoid(-2.0), 1e-6);
  const std::vector<float> ones(2, 1.0f);
  EXPECT_THAT(Run(ones, {3e38f, -3e38f}, ones, GateActivation::kSigmoid),
              testing::ElementsAre(testing::FloatNear(1.0f, 1e-6f), 0.0f));
}

TEST_P(GatedRmsNorm, MayWriteOverItsInput) {
  for (const int64_t dim : {20, 132, 257}) {
    Random random(7);
    std::vector<float> x = random.Normal(40 * dim);
    const std::vector<float> z = random.Normal(40 * dim), weight = random.Normal(dim);
    const std::vector<float> apart = Run(x, z, weight);
    Run(x, z, weight, x.data());
    EXPECT_TRUE(BitEqual(x, apart)) << dim;
  }
}

TEST_P(GatedRmsNorm, ARowHasTheSameBitsAloneAndAmongOthers) {
  for (const int64_t dim : {1, 24, 30, 33, 128, 132, 257}) {
    Random random(8);
    const std::vector<float> x = random.Normal(500 * dim), z = random.Normal(500 * dim), weight = random.Normal(dim);
    const std::vector<float> all = Run(x, z, weight);
    for (const int64_t row : {0, 31, 32, 499}) {
      const auto own = [&](const std::vector<float>& tensor) { return SliceRows(tensor, dim, row, row + 1); };
      EXPECT_TRUE(BitEqual(Run(own(x), own(z), weight), own(all))) << dim;
    }
  }
}

TEST_P(GatedRmsNorm, MayPutHeadsIntoTiledOrder) {
  constexpr int32_t kKeyHeads = 3, kGroup = 2, kHeads = kKeyHeads * kGroup;
  for (const int64_t dim : {12, 33, 257}) {
    const int64_t rows = 50 * kHeads;
    Random random(9);
    const std::vector<float> x = random.Normal(rows * dim), z = random.Normal(rows * dim), weight = random.Normal(dim);
    const std::vector<float> grouped = Run(x, z, weight);
    std::vector<float> tiled(x.size());
    ASSERT_EQ(backend().GatedRmsNorm({.value_dim = static_cast<int32_t>(dim),
                                      .rows = rows,
                                      .x = x.data(),
                                      .z = z.data(),
                                      .weight = weight.data(),
                                      .y = tiled.data(),
                                      .key_heads = kKeyHeads,
                                      .group = kGroup}),
              absl::OkStatus());
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t head = row % kHeads;
      const int64_t to = row / kHeads * kHeads + head % kGroup * kKeyHeads + head / kGroup;
      ASSERT_TRUE(BitEqual(SliceRows(tiled, dim, to, to + 1), SliceRows(grouped, dim, row, row + 1))) << row;
    }
  }
}

TEST(GatedRmsNormParams, BadOnesAreRefusedByName) {
  float data[4] = {};
  ExpectRefused<GatedRmsNormParams>(
      ValidateGatedRmsNorm, {.value_dim = 4, .rows = 1, .x = data, .z = data, .weight = data, .y = data},
      {{"epsilon is 0", [](auto& p) { p.epsilon = 0.0f; }}, {"weight is null", [](auto& p) { p.weight = nullptr; }}});
  float y[24];
  ExpectRefused<GatedRmsNormParams>(
      ValidateGatedRmsNorm,
      {.value_dim = 4, .rows = 6, .x = data, .z = data, .weight = data, .y = y, .key_heads = 3, .group = 2},
      {{"key_heads is 0", [](auto& p) { p.key_heads = 0; }},
       {"group is -1", [](auto& p) { p.group = -1; }},
       {"rows is 5; expected a multiple of", [](auto& p) { p.rows = 5; }},
       {"y is x", [](auto& p) { p.y = const_cast<float*>(p.x); }}});
}

}  // namespace
}  // namespace gdn::gated_rmsnorm_test
