// Rounding of inputs to int8, and the names of the maths.

#include "base/product_math.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "tests/support/random.h"

namespace gdn::product_math_test {
namespace {

TEST(ProductMath, ItsNamesAreReadBack) {
  for (const ProductMath math : {ProductMath::kExact, ProductMath::kInt8, ProductMath::kHalf}) {
    EXPECT_EQ(ParseProductMath(ProductMathName(math)), math);
  }
  EXPECT_EQ(ParseProductMath("INT8"), std::nullopt);
  EXPECT_EQ(NumericsSuffixOf(ProductMath::kExact), "");
  EXPECT_EQ(NumericsSuffixOf(ProductMath::kInt8), "-int8");
  EXPECT_EQ(NumericsSuffixOf(ProductMath::kHalf), "-half");
}

TEST(ProductMath, Int8IsForIntegerWeights) {
  EXPECT_TRUE(TakesInt8Inputs(ProductMath::kInt8, WeightFormat::kQ4_K));
  EXPECT_FALSE(TakesInt8Inputs(ProductMath::kExact, WeightFormat::kQ4_K));
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kF32, WeightFormat::kF8E4M3}) {
    EXPECT_FALSE(TakesInt8Inputs(ProductMath::kInt8, format)) << WeightFormatName(format);
  }
}

TEST(RoundToInt8, ErrsByHalfAScale) {
  Random random(3);
  for (const float size : {1.0f, 1e-20f, 1e-29f, 1e30f, 3e38f / 8}) {
    std::vector<float> x = random.Normal(kInt8Block);
    for (float& one : x) one = std::clamp(one, -8.0f, 8.0f) * size;
    int8_t q[kInt8Block];
    const float scale = RoundToInt8(x.data(), q);
    ASSERT_GT(scale, 0.0f);
    int largest = 0;
    for (int i = 0; i < kInt8Block; ++i) {
      EXPECT_LE(std::abs(double{x[i]} - double{scale} * q[i]), 0.5001 * double{scale}) << size << " at " << i;
      largest = std::max(largest, std::abs(int{q[i]}));
    }
    EXPECT_EQ(largest, 127);
  }
}

TEST(RoundToInt8, RoundsToNearestEven) {
  float x[kInt8Block] = {127.0f, 0.5f, 1.5f, -2.5f, -126.5f};
  int8_t q[kInt8Block];
  EXPECT_EQ(RoundToInt8(x, q), 127.0f * (1.0f / 127.0f));
  EXPECT_THAT(std::vector<int>(q, q + 6), testing::ElementsAre(127, 0, 2, -2, -126, 0));
}

TEST(RoundToInt8, SmallBlocksAreZero) {
  float x[kInt8Block] = {0x1p-101f, -0.0f, std::numeric_limits<float>::denorm_min()};
  int8_t q[kInt8Block];
  EXPECT_EQ(RoundToInt8(x, q), 0.0f);
  EXPECT_THAT(q, testing::Each(0));
}

TEST(RoundToInt8, WhatIsNotFiniteMakesItsBlockNaN) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    float x[kInt8Block] = {1.0f, bad, 3.0f};
    int8_t q[kInt8Block];
    EXPECT_TRUE(std::isnan(RoundToInt8(x, q))) << bad;
    EXPECT_THAT(q, testing::Each(0));
  }
}

}  // namespace
}  // namespace gdn::product_math_test
