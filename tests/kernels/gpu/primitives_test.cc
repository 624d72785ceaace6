// Element-wise operations, reductions, norms and running sums: properties that rows of gdn_parity cannot show, namely
// bits, values that are no numbers, and errors.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/primitives/cumsum/cumsum.h"
#include "kernels/primitives/elementwise/elementwise.h"
#include "kernels/primitives/l2norm/l2norm.h"
#include "kernels/primitives/reduce/reduce.h"
#include "tests/kernels/gpu/gpu_fixture.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"

namespace gdn::primitives_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Elementwise = GpuTest;
GDN_ON_BACKENDS(Elementwise, WithGpus({}));

TEST_P(Elementwise, ConversionsRoundToNearestEvenAndKeepInfinityAndNan) {
  Random random(5);
  for (DType half : {DType::kBF16, DType::kF16}) {
    std::vector<float> x = random.Normal(1019, 100.0f);
    // Ties, the smallest denormals, what overflows, and what is no number.
    for (float value : {1.00390625f, 1.01171875f, 1.00048828125f, 1.00146484375f, 6e-8f, 2e-8f, 1e-40f, 65519.0f,
                        65520.0f, 3.4e38f, -3.4e38f, kInfinity, -kInfinity, 0.0f, -0.0f}) {
      x.push_back(value);
    }
    const int64_t count = static_cast<int64_t>(x.size());
    std::vector<uint16_t> expected(count);
    ASSERT_EQ(ConvertCpu({.count = count, .x = x.data(), .y = {expected.data(), half}}), absl::OkStatus());
    for (int offset : {0, 1}) {  // aligned, and not
      uint16_t* y = Poisoned<uint16_t>(count + offset) + offset;
      ASSERT_EQ(ConvertGpu({.count = count, .x = Upload(x), .y = {y, half}}, stream()), absl::OkStatus());
      EXPECT_EQ(Download(y, count), expected);
      std::vector<float> back(count);
      ASSERT_EQ(ConvertCpu({.count = count, .x = {expected.data(), half}, .y = back.data()}), absl::OkStatus());
      float* z = Poisoned(count);
      ASSERT_EQ(ConvertGpu({.count = count, .x = {y, half}, .y = z}, stream()), absl::OkStatus());
      EXPECT_TRUE(BitEqual(Download(z, count), back));
    }
    uint16_t* y = Poisoned<uint16_t>(1);
    ASSERT_EQ(ConvertGpu({.count = 1, .x = Upload({kNan}), .y = {y, half}}, stream()), absl::OkStatus());
    float* z = Upload({0.0f});
    ASSERT_EQ(ConvertGpu({.count = 1, .x = {y, half}, .y = z}, stream()), absl::OkStatus());
    EXPECT_TRUE(std::isnan(Download(z, 1)[0]));
  }
}

TEST(ConvertParams, AConversionBetweenTwoEqualFormatsIsRefused) {
  float x = 0.0f;
  for (const auto& [from, to] : {std::pair(DType::kF32, DType::kF32), std::pair(DType::kF16, DType::kBF16)}) {
    EXPECT_THAT(ValidateConvert({.count = 1, .x = {&x, from}, .y = {&x, to}}), IsInvalid(""));
  }
}

constexpr ReduceOp kReduceOps[] = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kAbsDiffSum, ReduceOp::kAbsDiffMax,
                                   ReduceOp::kSquaredDiff};

class Reduce : public GpuTest {
 protected:
  float Run(ReduceOp op, const std::vector<float>& x, const std::vector<float>& y, const gpu::Stream& on) {
    const int64_t count = static_cast<int64_t>(x.size());
    float* result = Poisoned(1);
    EXPECT_EQ(ReduceGpu({.op = op,
                         .count = count,
                         .x = Upload(x),
                         .y = Upload(y),
                         .result = result,
                         .workspace = Poisoned<double>(static_cast<int64_t>(ReduceWorkspaceBytes(count) / 8))},
                        on),
              absl::OkStatus());
    return Download(result, 1)[0];
  }
};
GDN_ON_BACKENDS(Reduce, WithGpus({}));

TEST_P(Reduce, OfNothingASumIsZeroAndAMaximumMinusInfinity) {
  for (ReduceOp op : kReduceOps) {
    const bool maximum = op == ReduceOp::kMax || op == ReduceOp::kAbsDiffMax;
    EXPECT_EQ(Run(op, {}, {}, stream()), maximum ? -kInfinity : 0.0f);
  }
}

// The maximum of negative numbers: a kernel that starts from 0 fails.
TEST_P(Reduce, TheLargestOfNegativeNumbersIsNegative) {
  const std::vector<float> x(300, -2.5f);
  EXPECT_EQ(Run(ReduceOp::kMax, x, x, stream()), -2.5f);
}

TEST_P(Reduce, ANanAnywhereIsTheResult) {
  for (size_t at : {size_t{0}, size_t{255}, size_t{4096}, size_t{8999}}) {
    std::vector<float> x(9000, 1.0f);
    const std::vector<float> y(9000, 0.5f);
    x[at] = kNan;
    for (ReduceOp op : kReduceOps) EXPECT_TRUE(std::isnan(Run(op, x, y, stream())));
  }
}

TEST_P(Reduce, ASumDoesNotDependOnHowManyProcessorsThereAre) {
  Random random(7);
  const std::vector<float> x = random.Normal(30000);
  gpu::Stream large = stream();
  large.processors = 120;
  EXPECT_EQ(Run(ReduceOp::kSum, x, x, stream()), Run(ReduceOp::kSum, x, x, large));
}

using L2Norm = GpuTest;
GDN_ON_BACKENDS(L2Norm, WithGpus({}));

TEST_P(L2Norm, ARowsBitsDoNotDependOnWhereItLiesOrOnItsCompanions) {
  Random random(9);
  constexpr int64_t kWidth = 132;
  const std::vector<float> x = random.Normal(10 * kWidth);
  float* all = Poisoned(10 * kWidth);
  ASSERT_EQ(L2NormGpu({.rows = 10, .width = kWidth, .x = Upload(x), .y = all}, stream()), absl::OkStatus());
  std::vector<float> last(1, 0.0f);  // its own row, one float away from an aligned address
  last.insert(last.end(), x.end() - kWidth, x.end());
  float* alone = Poisoned(kWidth);
  ASSERT_EQ(L2NormGpu({.rows = 1, .width = kWidth, .x = Upload(last) + 1, .y = alone}, stream()), absl::OkStatus());
  EXPECT_TRUE(BitEqual(Download(all + 9 * kWidth, kWidth), Download(alone, kWidth)));
}

using Cumsum = GpuTest;
GDN_ON_BACKENDS(Cumsum, WithGpus({}));

// One token that decays by 1e4 among tokens that do not: a float32 running sum keeps nothing of what follows it.
TEST_P(Cumsum, SmallTermsAfterALargeOneAreNotLost) {
  std::vector<float> x(64, -1e-3f);
  x[3] = -1e4f;
  x[4] = 1e4f;
  float* y = Poisoned(64);
  ASSERT_EQ(CumsumGpu({.tokens = 64, .x = Upload(x), .y = y}, stream()), absl::OkStatus());
  EXPECT_NEAR(Download(y, 64)[63], -0.062, 1e-6);
}

TEST_P(Cumsum, AMissingWorkspaceIsNamed) {
  float* x = Upload(std::vector<float>(5000, 1.0f));
  EXPECT_THAT(CumsumGpu({.tokens = 5000, .x = x, .y = x}, stream()), IsInvalid("workspace"));
}

}  // namespace
}  // namespace gdn::primitives_test
