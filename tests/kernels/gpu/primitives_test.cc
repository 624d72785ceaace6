// What rows of gdn_parity cannot say of element-wise operations, reductions, norms and running sums: bits, values that
// are no numbers, errors.

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

namespace gdn {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Elementwise, ConversionsRoundToNearestEvenAndKeepInfinityAndNan) {
  OnEveryWave([](GpuDevice& device) {
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
      ConvertReference({.from = DType::kF32, .to = half, .count = count, .x = x.data(), .y = expected.data()});
      for (int offset : {0, 1}) {  // aligned, and not
        uint16_t* y = device.PoisonedValues<uint16_t>(count + offset) + offset;
        ASSERT_OK(ConvertGpu({.from = DType::kF32, .to = half, .count = count, .x = device.Upload(x), .y = y},
                             device.stream()));
        EXPECT_EQ(device.Download(y, count), expected);
        std::vector<float> back(count);
        ConvertReference({.from = half, .to = DType::kF32, .count = count, .x = expected.data(), .y = back.data()});
        float* z = device.Poisoned(count);
        ASSERT_OK(ConvertGpu({.from = half, .to = DType::kF32, .count = count, .x = y, .y = z}, device.stream()));
        EXPECT_TRUE(BitEqual(device.Download(z, count), back));
      }
      uint16_t* y = device.PoisonedValues<uint16_t>(1);
      ASSERT_OK(ConvertGpu({.from = DType::kF32, .to = half, .count = 1, .x = device.Upload({kNan}), .y = y},
                           device.stream()));
      float* z = device.Upload({0.0f});
      ASSERT_OK(ConvertGpu({.from = half, .to = DType::kF32, .count = 1, .x = y, .y = z}, device.stream()));
      EXPECT_TRUE(std::isnan(device.Download(z, 1)[0]));
    }
  });
}

TEST(Elementwise, AConversionBetweenTwoEqualFormatsIsRefused) {
  float x = 0.0f;
  EXPECT_EQ(ValidateConvert({.from = DType::kF32, .to = DType::kF32, .count = 1, .x = &x, .y = &x}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ValidateConvert({.from = DType::kF16, .to = DType::kBF16, .count = 1, .x = &x, .y = &x}).code(),
            absl::StatusCode::kInvalidArgument);
}

constexpr ReduceOp kReduceOps[] = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kAbsDiffSum, ReduceOp::kAbsDiffMax,
                                   ReduceOp::kSquaredDiff};

float RunReduce(GpuDevice& device, ReduceOp op, const std::vector<float>& x, const std::vector<float>& y,
                const gpu::Stream& stream) {
  const int64_t count = static_cast<int64_t>(x.size());
  float* result = device.Poisoned(1);
  const absl::Status status = ReduceGpu(
      {.op = op,
       .count = count,
       .x = device.Upload(x),
       .y = device.Upload(y),
       .result = result,
       .workspace = device.PoisonedValues<double>(static_cast<int64_t>(ReduceWorkspaceBytes(count) / sizeof(double)))},
      stream);
  EXPECT_TRUE(status.ok()) << status;
  return device.Download(result, 1)[0];
}

TEST(Reduce, OfNothingASumIsZeroAndAMaximumMinusInfinity) {
  OnEveryWave([](GpuDevice& device) {
    for (ReduceOp op : kReduceOps) {
      const bool maximum = op == ReduceOp::kMax || op == ReduceOp::kAbsDiffMax;
      EXPECT_EQ(RunReduce(device, op, {}, {}, device.stream()), maximum ? -kInfinity : 0.0f);
    }
  });
}

// The maximum of negative numbers: a kernel that starts from 0 fails.
TEST(Reduce, TheLargestOfNegativeNumbersIsNegative) {
  OnEveryWave([](GpuDevice& device) {
    const std::vector<float> x(300, -2.5f);
    EXPECT_EQ(RunReduce(device, ReduceOp::kMax, x, x, device.stream()), -2.5f);
  });
}

TEST(Reduce, ANanAnywhereIsTheResult) {
  OnEveryWave([](GpuDevice& device) {
    for (size_t at : {size_t{0}, size_t{255}, size_t{4096}, size_t{8999}}) {
      std::vector<float> x(9000, 1.0f);
      const std::vector<float> y(9000, 0.5f);
      x[at] = kNan;
      for (ReduceOp op : kReduceOps) EXPECT_TRUE(std::isnan(RunReduce(device, op, x, y, device.stream())));
    }
  });
}

TEST(Reduce, ASumDoesNotDependOnHowManyProcessorsThereAre) {
  OnEveryWave([](GpuDevice& device) {
    Random random(7);
    const std::vector<float> x = random.Normal(30000);
    gpu::Stream large = device.stream();
    large.processors = 120;
    EXPECT_EQ(RunReduce(device, ReduceOp::kSum, x, x, device.stream()), RunReduce(device, ReduceOp::kSum, x, x, large));
  });
}

TEST(L2Norm, ARowsBitsDoNotDependOnWhereItLiesOrOnItsCompanions) {
  OnEveryWave([](GpuDevice& device) {
    Random random(9);
    constexpr int64_t kWidth = 132;
    const std::vector<float> x = random.Normal(10 * kWidth);
    float* all = device.Poisoned(10 * kWidth);
    ASSERT_OK(L2NormGpu({.rows = 10, .width = kWidth, .x = device.Upload(x), .y = all}, device.stream()));
    std::vector<float> last(1, 0.0f);  // its own row, one float away from an aligned address
    last.insert(last.end(), x.end() - kWidth, x.end());
    float* alone = device.Poisoned(kWidth);
    ASSERT_OK(L2NormGpu({.rows = 1, .width = kWidth, .x = device.Upload(last) + 1, .y = alone}, device.stream()));
    EXPECT_TRUE(BitEqual(device.Download(all + 9 * kWidth, kWidth), device.Download(alone, kWidth)));
  });
}

// One token that decays by 1e4 among tokens that do not: a float32 running sum keeps nothing of what follows it.
TEST(Cumsum, SmallTermsAfterALargeOneAreNotLost) {
  OnEveryWave([](GpuDevice& device) {
    std::vector<float> x(64, -1e-3f);
    x[3] = -1e4f;
    x[4] = 1e4f;
    float* y = device.Poisoned(64);
    ASSERT_OK(CumsumGpu({.tokens = 64, .x = device.Upload(x), .y = y}, device.stream()));
    EXPECT_NEAR(device.Download(y, 64)[63], -0.062, 1e-6);
  });
}

TEST(Cumsum, AMissingWorkspaceIsNamed) {
  OnEveryWave([](GpuDevice& device) {
    float* x = device.Upload(std::vector<float>(5000, 1.0f));
    const absl::Status status = CumsumGpu({.tokens = 5000, .x = x, .y = x}, device.stream());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("workspace"), absl::string_view::npos);
  });
}

}  // namespace
}  // namespace gdn
