#include "kernels/gated_rmsnorm/gated_rmsnorm.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace gdn {
namespace {

constexpr double kTolerance = 1e-6;

struct Inputs {
  std::vector<float> x, z, weight;
  float epsilon = 1e-6f;
};

template <typename Operator>
std::vector<float> Apply(const Inputs& inputs, Operator run) {
  std::vector<float> y(inputs.x.size());
  const int64_t dim = static_cast<int64_t>(inputs.weight.size());
  run(GatedRmsNormParams{.value_dim = static_cast<int32_t>(dim),
                         .rows = static_cast<int64_t>(inputs.x.size()) / dim,
                         .epsilon = inputs.epsilon,
                         .x = inputs.x.data(),
                         .z = inputs.z.data(),
                         .weight = inputs.weight.data(),
                         .y = y.data()});
  return y;
}

void OnCpu(const GatedRmsNormParams& params) {
  ThreadPool pool(3);
  const absl::Status status = GatedRmsNormCpu(params, pool);
  EXPECT_TRUE(status.ok()) << status;
}

double Silu(double x) { return x / (1.0 + std::exp(-x)); }

TEST(GatedRmsNorm, NormalisesBeforeTheGateWithThePlainWeight) {
  // mean square of {3, 4} is 12.5
  const std::vector<float> y = Apply({.x = {3.0f, 4.0f}, .z = {1.0f, -2.0f}, .weight = {0.5f, 2.0f}}, OnCpu);
  const double factor = 1.0 / std::sqrt(12.5 + 1e-6);
  EXPECT_NEAR(y[0], 0.5 * 3.0 * factor * Silu(1.0), 1e-6);
  EXPECT_NEAR(y[1], 2.0 * 4.0 * factor * Silu(-2.0), 1e-6);
}

TEST(GatedRmsNorm, MatchesReferenceForEveryTailOfValueDim) {
  Random random(6);
  for (int32_t dim : {1, 3, 8, 15, 16, 17, 48, 100, 128, 257}) {
    for (float spread : {1.0f, 30.0f, 1000.0f}) {
      const Inputs inputs{random.Normal(53 * dim), random.Normal(53 * dim, spread), random.Normal(dim), 1e-5f};
      EXPECT_LE(RelativeNormError(Apply(inputs, OnCpu), Apply(inputs, GatedRmsNormReference)), kTolerance) << dim;
    }
  }
}

TEST(GatedRmsNorm, IsFiniteForTheLargestGatesAndForZeroRows) {
  const std::vector<float> z = {3e38f, -3e38f, 100.0f, -100.0f, 0.0f, -104.0f, 88.0f, -88.0f};
  const std::vector<float> y =
      Apply({.x = std::vector<float>(8, 1.0f), .z = z, .weight = std::vector<float>(8, 1.0f)}, OnCpu);
  EXPECT_TRUE(AllFinite(y));
  EXPECT_FLOAT_EQ(y[0], 3e38f / std::sqrt(1.0f + 1e-6f));
  EXPECT_EQ(y[1], 0.0f);
  const std::vector<float> zero =
      Apply({.x = std::vector<float>(8, 0.0f), .z = z, .weight = std::vector<float>(8, 1.0f)}, OnCpu);
  EXPECT_THAT(zero, testing::Each(0.0f));
}

TEST(GatedRmsNorm, MayWriteOverItsInput) {
  Random random(7);
  Inputs inputs{random.Normal(40 * 20), random.Normal(40 * 20), random.Normal(20)};
  const std::vector<float> apart = Apply(inputs, OnCpu);
  OnCpu({.value_dim = 20,
         .rows = 40,
         .x = inputs.x.data(),
         .z = inputs.z.data(),
         .weight = inputs.weight.data(),
         .y = inputs.x.data()});
  EXPECT_TRUE(BitEqual(inputs.x, apart));
}

TEST(GatedRmsNorm, ARowHasTheSameBitsAloneAndAmongOthers) {
  Random random(8);
  const Inputs inputs{random.Normal(500 * 30), random.Normal(500 * 30), random.Normal(30)};
  const std::vector<float> all = Apply(inputs, OnCpu);
  for (int64_t row : {0, 31, 32, 499}) {
    const auto own = [row](const std::vector<float>& tensor) {
      return std::vector<float>(tensor.begin() + row * 30, tensor.begin() + (row + 1) * 30);
    };
    EXPECT_TRUE(BitEqual(Apply({own(inputs.x), own(inputs.z), inputs.weight}, OnCpu), own(all)));
  }
}

TEST(GatedRmsNorm, BadParamsAreRefusedByName) {
  float data[4] = {};
  GatedRmsNormParams params{
      .value_dim = 4, .rows = 1, .epsilon = 0.0f, .x = data, .z = data, .weight = nullptr, .y = data};
  EXPECT_THAT(std::string(ValidateGatedRmsNorm(params).message()), testing::HasSubstr("epsilon is 0"));
  params.epsilon = 1e-6f;
  EXPECT_THAT(std::string(ValidateGatedRmsNorm(params).message()), testing::HasSubstr("weight is null"));
}

}  // namespace
}  // namespace gdn
