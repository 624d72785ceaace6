// Element-wise operations, reductions, norms and running sums on the GPU sources.

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

constexpr double kElementwiseTolerance = 1e-6;
constexpr double kSumTolerance = 1e-5;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr UnaryOp kUnaryOps[] = {UnaryOp::kExp,  UnaryOp::kLog,      UnaryOp::kSigmoid,
                                 UnaryOp::kSilu, UnaryOp::kSoftplus, UnaryOp::kNeg};
constexpr BinaryOp kBinaryOps[] = {BinaryOp::kAdd, BinaryOp::kSub, BinaryOp::kMul, BinaryOp::kAbsDiff,
                                   BinaryOp::kSquaredDiff};

// `offset` floats into an allocation: 1 takes the path of unaligned tensors.
std::vector<float> RunUnary(GpuDevice& device, UnaryOp op, const std::vector<float>& x, int offset) {
  const int64_t count = static_cast<int64_t>(x.size());
  std::vector<float> shifted(offset, 1.0f);
  shifted.insert(shifted.end(), x.begin(), x.end());
  const float* device_x = device.Upload(shifted) + offset;
  float* y = device.Poisoned(count + offset) + offset;
  const absl::Status status = UnaryGpu({.op = op, .count = count, .x = device_x, .y = y}, device.stream());
  EXPECT_TRUE(status.ok()) << status;
  return device.Download(y, count);
}

TEST(Elementwise, EveryUnaryOperationMatchesItsReferenceWithAnyTailAndAlignment) {
  OnEveryWave([](GpuDevice& device) {
    Random random(1);
    for (UnaryOp op : kUnaryOps) {
      for (int64_t count : {0, 1, 3, 4, 1027}) {
        std::vector<float> x = random.Normal(count, 3.0f);
        if (op == UnaryOp::kLog) x = random.Uniform(count, 1e-3f, 10.0f);
        std::vector<float> expected(count);
        UnaryReference({.op = op, .count = count, .x = x.data(), .y = expected.data()});
        for (int offset : {0, 1}) {
          const std::vector<float> actual = RunUnary(device, op, x, offset);
          EXPECT_LE(RelativeNormError(actual, expected), kElementwiseTolerance)
              << "operation " << static_cast<int>(op) << " count " << count << " offset " << offset;
        }
      }
    }
  });
}

TEST(Elementwise, TheLayersFunctionsStayFiniteFarOut) {
  OnEveryWave([](GpuDevice& device) {
    const std::vector<float> x = {-1e4f, -89.0f, 0.0f, 20.5f, 89.0f, 1e4f};
    for (UnaryOp op : {UnaryOp::kSigmoid, UnaryOp::kSilu, UnaryOp::kSoftplus}) {
      std::vector<float> expected(x.size());
      UnaryReference({.op = op, .count = static_cast<int64_t>(x.size()), .x = x.data(), .y = expected.data()});
      const std::vector<float> actual = RunUnary(device, op, x, 0);
      EXPECT_TRUE(AllFinite(actual));
      EXPECT_LE(RelativeNormError(actual, expected), kElementwiseTolerance);
    }
  });
}

TEST(Elementwise, EveryBinaryOperationMatchesItsReferenceInPlaceToo) {
  OnEveryWave([](GpuDevice& device) {
    Random random(2);
    for (BinaryOp op : kBinaryOps) {
      const int64_t count = 1030;
      const std::vector<float> a = random.Normal(count);
      const std::vector<float> b = random.Normal(count);
      std::vector<float> expected(count);
      BinaryReference({.op = op, .count = count, .a = a.data(), .b = b.data(), .y = expected.data()});
      float* y = device.Upload(a);
      ASSERT_OK(BinaryGpu({.op = op, .count = count, .a = y, .b = device.Upload(b), .y = y}, device.stream()));
      EXPECT_LE(RelativeNormError(device.Download(y, count), expected), kElementwiseTolerance);
    }
  });
}

TEST(Elementwise, ScaleMatchesItsReference) {
  OnEveryWave([](GpuDevice& device) {
    Random random(3);
    const std::vector<float> x = random.Normal(517);
    std::vector<float> expected(517);
    ScaleReference({.count = 517, .factor = -0.3f, .x = x.data(), .y = expected.data()});
    float* y = device.Poisoned(517);
    ASSERT_OK(ScaleGpu({.count = 517, .factor = -0.3f, .x = device.Upload(x), .y = y}, device.stream()));
    EXPECT_TRUE(BitEqual(device.Download(y, 517), expected));
  });
}

// More rows than columns and the other way about: a row vector taken for a column vector would read past its end.
TEST(Elementwise, RowAndColumnVectorsAreToldApartAndGapsBetweenRowsAreLeftAlone) {
  OnEveryWave([](GpuDevice& device) {
    Random random(4);
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{70, 5}, {5, 70}, {16, 64}}) {
      for (VectorKind kind : {VectorKind::kRow, VectorKind::kColumn}) {
        const int64_t x_stride = cols + 3;
        const int64_t y_stride = cols + 1;
        const int64_t v_stride = 2;
        const std::vector<float> x = random.Normal(rows * x_stride);
        const std::vector<float> v = random.Normal((kind == VectorKind::kRow ? cols : rows) * v_stride);
        std::vector<float> expected(rows * y_stride, 7.0f);
        VectorMultiplyParams params{.vector = kind,
                                    .rows = rows,
                                    .cols = cols,
                                    .x = x.data(),
                                    .x_stride = x_stride,
                                    .v = v.data(),
                                    .v_stride = v_stride,
                                    .y = expected.data(),
                                    .y_stride = y_stride};
        VectorMultiplyReference(params);
        params.x = device.Upload(x);
        params.v = device.Upload(v);
        params.y = device.Upload(std::vector<float>(rows * y_stride, 7.0f));
        ASSERT_OK(VectorMultiplyGpu(params, device.stream()));
        EXPECT_TRUE(BitEqual(device.Download(params.y, rows * y_stride), expected));
      }
    }
  });
}

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

TEST(Reduce, MatchesItsReferenceForAnyLength) {
  OnEveryWave([](GpuDevice& device) {
    Random random(6);
    for (int64_t count : {0, 1, 255, 4096, 4097, 20000}) {
      const std::vector<float> x = random.Normal(count);
      const std::vector<float> y = random.Normal(count);
      for (ReduceOp op : kReduceOps) {
        float expected = 0.0f;
        ReduceReference({.op = op, .count = count, .x = x.data(), .y = y.data(), .result = &expected});
        const float actual = RunReduce(device, op, x, y, device.stream());
        if (std::isinf(expected)) {
          EXPECT_EQ(actual, expected);
        } else {
          EXPECT_NEAR(actual, expected, kElementwiseTolerance * std::abs(expected))
              << "operation " << static_cast<int>(op) << " count " << count;
        }
      }
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

TEST(L2Norm, MatchesItsReferenceForAnyWidth) {
  OnEveryWave([](GpuDevice& device) {
    Random random(8);
    constexpr int64_t kRows = 11;
    for (int64_t width : {1, 3, 24, 33, 128, 130, 1000}) {
      std::vector<float> x = random.Normal(kRows * width);
      for (int64_t i = 0; i < kRows * width; ++i) x[i] *= std::pow(10.0f, -static_cast<float>(i / width % 5));
      for (int64_t i = 0; i < width; ++i) x[i] = 0.0f;  // a row of zeros stays one
      const std::vector<float> dy = random.Normal(kRows * width);
      std::vector<float> y(x.size()), dx(x.size());
      L2NormReference({.rows = kRows, .width = width, .x = x.data(), .y = y.data()});
      L2NormBackwardReference({.rows = kRows, .width = width, .x = x.data(), .dy = dy.data(), .dx = dx.data()});
      float* device_x = device.Upload(x);
      float* device_dx = device.Poisoned(kRows * width);
      ASSERT_OK(L2NormBackwardGpu(
          {.rows = kRows, .width = width, .x = device_x, .dy = device.Upload(dy), .dx = device_dx}, device.stream()));
      EXPECT_LE(RelativeNormError(device.Download(device_dx, kRows * width), dx), kSumTolerance) << "width " << width;
      ASSERT_OK(L2NormGpu({.rows = kRows, .width = width, .x = device_x, .y = device_x}, device.stream()));
      EXPECT_LE(RelativeNormError(device.Download(device_x, kRows * width), y), kElementwiseTolerance)
          << "width " << width;
    }
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

struct CumsumShape {
  int64_t tokens, features, chunk;
};

std::vector<float> RunCumsum(GpuDevice& device, const CumsumShape& shape, const std::vector<float>& x) {
  float* y = device.Upload(x);  // in place
  CumsumParams params{.tokens = shape.tokens, .features = shape.features, .chunk = shape.chunk, .x = y, .y = y};
  params.workspace = device.PoisonedValues<double>(static_cast<int64_t>(CumsumWorkspaceBytes(params) / sizeof(double)));
  const absl::Status status = CumsumGpu(params, device.stream());
  EXPECT_TRUE(status.ok()) << status;
  return device.Download(y, static_cast<int64_t>(x.size()));
}

// Tiles are 2048 tokens (scalar) and 64 (vector), and 64 vector tiles are scanned at a time: lengths on both sides of each
// (three rounds of tiles, so that what one hands on reaches past the next), and chunks that divide a tile, straddle tiles
// and span several.
TEST(Cumsum, MatchesItsReferenceForAnyLengthAndChunk) {
  OnEveryWave([](GpuDevice& device) {
    Random random(10);
    for (const CumsumShape& shape :
         {CumsumShape{0, 1, 0},       CumsumShape{1, 1, 0},     CumsumShape{7, 1, 3},      CumsumShape{2049, 1, 0},
          CumsumShape{9000, 1, 0},    CumsumShape{9000, 1, 64}, CumsumShape{9000, 1, 100}, CumsumShape{9000, 1, 5000},
          CumsumShape{9000, 1, 2048}, CumsumShape{65, 3, 0},    CumsumShape{64, 32, 64},   CumsumShape{300, 33, 0},
          CumsumShape{300, 33, 16},   CumsumShape{300, 5, 24},  CumsumShape{300, 5, 130},  CumsumShape{4200, 2, 0},
          CumsumShape{4200, 2, 4096}, CumsumShape{200, 2, 1},   CumsumShape{8400, 1, 0},   CumsumShape{8400, 2, 0},
          CumsumShape{8400, 2, 1000}}) {
      const std::vector<float> x = random.Normal(shape.tokens * shape.features);
      std::vector<float> expected(x.size());
      CumsumReference({.tokens = shape.tokens,
                       .features = shape.features,
                       .chunk = shape.chunk,
                       .x = x.data(),
                       .y = expected.data()});
      EXPECT_LE(RelativeNormError(RunCumsum(device, shape, x), expected), kElementwiseTolerance)
          << shape.tokens << " tokens, " << shape.features << " features, chunk " << shape.chunk;
    }
  });
}

// One token that decays by 1e4 among tokens that do not: a float32 running sum keeps nothing of what follows it.
TEST(Cumsum, SmallTermsAfterALargeOneAreNotLost) {
  OnEveryWave([](GpuDevice& device) {
    std::vector<float> x(64, -1e-3f);
    x[3] = -1e4f;
    x[4] = 1e4f;
    const std::vector<float> y = RunCumsum(device, {64, 1, 0}, x);
    EXPECT_NEAR(y[63], -0.062, 1e-6);
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
