// Projections of fp16 numbers: those of the reference, whatever computes them.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/product_math.h"
#include "kernels/projection/projection.h"
#include "tests/kernels/narrow_problem.h"
#include "tests/kernels/quantized_problem.h"
#include "tests/kernels/rounded_projection.h"
#include "tests/support/compare.h"

namespace gdn::half_projection_test {
namespace {

constexpr WeightFormat kPlain[] = {WeightFormat::kBF16, WeightFormat::kF16, WeightFormat::kF32};
constexpr WeightFormat kIntegers[] = {WeightFormat::kQ8_0, WeightFormat::kQ4_K};
constexpr WeightFormat kHalved[] = {WeightFormat::kBF16, WeightFormat::kF16, WeightFormat::kF32, WeightFormat::kQ8_0,
                                    WeightFormat::kQ4_K};

// A problem of inputs and weights that are rounded to fp16. Rows of weights have scales of their own.
struct HalfProblem : Problem {
  HalfProblem(WeightFormat format, int64_t rows, int64_t outputs, int64_t features)
      : Problem(format, rows, outputs, features) {
    params.math = ProductMath::kHalf;
    TakeScales();
  }
  void TakeScales() {
    params.weight.integer_halves = HasHalfProducts(params.weight.format);
    if (!IsPlain(params.weight.format)) return;
    scales = RowScalesOf(params.weight, params.math);
    params.weight.scales = scales.data();
  }
  std::vector<float> scales;
};

// The executor's backends. A build without it has none.
std::vector<std::string> Executors() {
  std::vector<std::string> names = HostBackends();
  std::erase(names, "cpu");
  return names;
}

class HalfProjection : public BackendTest {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HalfProjection);
GDN_ON_BACKENDS(HalfProjection, Executors());

TEST_P(HalfProjection, MatchesTheReferenceOfRoundedOperands) {
  ExpectReferenceOnEveryPath<HalfProblem>(backend(), kPlain, /*features=*/512 + 192, /*large=*/false);
  ExpectReferenceOnEveryPath<HalfProblem>(backend(), kIntegers, /*features=*/512 + 256, /*large=*/false);
}

TEST_P(HalfProjection, TakesAnyNumberOfFeaturesAndAnyRangeOfValues) {
  for (const WeightFormat format : kHalved) {
    for (const int64_t features : {1, 7, 32, 64, 65, 96, 100, 160, 200, 256, 1000, 1280}) {
      if (features % BlockOf(format).weights != 0) continue;
      for (const int64_t rows : {1, 7, 40}) {
        HalfProblem problem(format, rows, /*outputs=*/37, features);
        for (int64_t row = 0; row < rows; ++row) {
          float* x = problem.x.data() + row * problem.params.x_stride;
          x[row % features] = 1e4f;
          for (int64_t i = 0; i < std::min<int64_t>(features, 32); ++i) {
            x[i] *= row % 3 == 0 ? 0.0f : row % 3 == 1 ? 1e-20f : 1e20f;
          }
        }
        EXPECT_LE(RelativeNormError(Project(problem.params, backend()), Expected(problem.params)), kTolerance)
            << WeightFormatName(format) << ", " << features << " features, " << rows << " rows";
      }
    }
  }
}

TEST_P(HalfProjection, ARowHasTheSameBitsAmongAnyRowsOnAnyPath) {
  ExpectTheSameBitsAmongAnyRows<HalfProblem>(backend(), OthersOfTheSameBits(), kPlain, /*rows=*/77, /*features=*/328);
  ExpectTheSameBitsAmongAnyRows<HalfProblem>(backend(), OthersOfTheSameBits(), kIntegers, /*rows=*/77,
                                             /*features=*/768);
}

TEST_P(HalfProjection, WhatIsNotFiniteStaysInItsRowsAndOutputs) {
  for (const int64_t rows : {2, 9, 40}) {
    HalfProblem problem(WeightFormat::kF32, rows, /*outputs=*/6, /*features=*/192);
    const std::vector<float> clean = Project(problem.params, backend());
    const float nan = NAN;
    std::memcpy(&problem.weights.bytes[(2 * 192 + 7) * sizeof(float)], &nan, sizeof(nan));
    problem.TakeScales();
    problem.x[problem.params.x_stride + 3] = INFINITY;
    const std::vector<float> spoilt = Project(problem.params, backend());
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t output = 0; output < 6; ++output) {
        const int64_t i = row * problem.params.y_stride + output;
        if (output == 2) {
          EXPECT_TRUE(std::isnan(spoilt[i])) << row;
        } else if (row == 1) {
          EXPECT_TRUE(std::isinf(spoilt[i])) << output;
        } else {
          EXPECT_EQ(spoilt[i], clean[i]) << row << ", " << output;
        }
      }
    }
  }
}

TEST_P(HalfProjection, ReadsAndWritesEveryDtype) { ExpectEveryDtype<HalfProblem>(backend(), {WeightFormat::kBF16}); }

// 3e-4 is what the docs say: each operand errs by up to 2^-12 of itself.
TEST_P(HalfProjection, ErrsByThreeTenThousandthsOfExactProducts) {
  for (const WeightFormat format : kHalved) {
    HalfProblem problem(format, /*rows=*/9, /*outputs=*/64, /*features=*/2048);
    const std::vector<float> rounded = Project(problem.params, backend());
    problem.params.math = ProductMath::kExact;
    const double error = RelativeNormError(rounded, Expected(problem.params));
    EXPECT_LE(error, 3e-4) << WeightFormatName(format);
    EXPECT_GE(error, 5e-5) << WeightFormatName(format) << ": inputs were not rounded";
  }
}

// Exact products of BF16 and F16 inputs.

TEST_P(HalfProjection, ExactProductsMatchTheReference) {
  ExpectReferenceOnEveryPath<NarrowProblem>(backend(), kPlain, /*features=*/512 + 192, /*large=*/false);
  ExpectReferenceOnEveryPath<NarrowProblem>(backend(), kIntegers, /*features=*/512 + 256, /*large=*/false);
}

TEST_P(HalfProjection, ARowOfExactProductsHasTheSameBitsAmongAnyRowsOnAnyPath) {
  ExpectTheSameBitsAmongAnyRows<NarrowProblem>(backend(), OthersOfTheSameBits(), kPlain, /*rows=*/77, /*features=*/328);
  ExpectTheSameBitsAmongAnyRows<NarrowProblem>(backend(), OthersOfTheSameBits(), kIntegers, /*rows=*/77,
                                               /*features=*/768);
}

// The executor's Dot2 rounds after each product, in the order of multiply-adds.
TEST_P(HalfProjection, ExactProductsAreThoseOfFloat32) {
  for (const WeightFormat format : kPlain) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int64_t rows : {1, 7, 40}) {
        NarrowProblem problem(format, rows, /*outputs=*/37, /*features=*/328, dtype);
        ASSERT_FALSE(problem.scales.empty());
        const std::vector<float> halves = Project(problem.params, backend());
        problem.params.weight.scales = nullptr;
        EXPECT_TRUE(BitEqual(halves, Project(problem.params, backend()))) << WeightFormatName(format) << ", " << rows;
      }
    }
  }
}

// Float32 inputs meet the matrix's own weights, which lie as scaled fp16 numbers.
TEST_P(HalfProjection, Float32InputsHaveTheBitsOfTheFilesWeights) {
  for (const WeightFormat format : kPlain) {
    for (const int64_t rows : {1, 2, 4, 7, 40, 130}) {
      for (const int64_t features : {328, 100}) {
        NarrowProblem problem(format, rows, /*outputs=*/70, features, DType::kF32);
        ASSERT_FALSE(problem.scales.empty());
        if (rows > 40) problem.params.path = ProjectionPath::kSequenceGemm;
        for (int64_t i = 0; i < features; ++i) problem.x[i] *= 0x1p100f;
        const std::vector<float> scaled = Project(problem.params, backend());
        problem.params.weight.scales = nullptr;
        EXPECT_TRUE(BitEqual(scaled, Project(problem.params, backend())))
            << WeightFormatName(format) << ", " << rows << " rows, " << features << " features";
      }
    }
  }
}

TEST_P(HalfProjection, ExactProductsHoldAtTheEndsOfEveryRange) {
  constexpr int64_t kFeatures = 136, kOutputs = 37;
  constexpr float kFactors[] = {1.0f, 0.0f, 0x1p-80f, 0x1p-116f, 0x1p-130f, 0x1p80f, 0x1p120f};
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const float most = dtype == DType::kBF16 ? 0x1.fep127f : 65504.0f;
    for (const int64_t rows : {7, 40}) {
      NarrowProblem problem(WeightFormat::kBF16, rows, kOutputs, kFeatures, dtype);
      for (int64_t row = 0; row < rows; ++row) {
        float* const x = problem.x.data() + row * problem.params.x_stride;
        for (int64_t i = 0; i < kFeatures; ++i) x[i] = std::clamp(x[i] * kFactors[row % 7], -most, most);
        if (row >= 7) x[row] *= 0x1p-30f;  // lost beside the others, as in a float32 sum
        if (row >= 14) x[row - 1] = most;
      }
      problem.TakeX();
      const std::vector<float> y = Project(problem.params, backend()), expected = Expected(problem.params);
      for (int64_t row = 0; row < rows; ++row) {
        const auto of_row = [&](const std::vector<float>& of) {
          return std::vector<float>(of.begin() + row * problem.params.y_stride,
                                    of.begin() + row * problem.params.y_stride + kOutputs);
        };
        const bool tiny = kFactors[row % 7] < 0x1p-88f && row < 14;
        if (!tiny) {
          EXPECT_LE(RelativeNormError(of_row(y), of_row(expected)), kTolerance) << DTypeName(dtype) << ", row " << row;
          continue;
        }
        for (int64_t output = 0; output < kOutputs; ++output) {  // features below 2^-116 may count as zero
          EXPECT_NEAR(of_row(y)[output], of_row(expected)[output], 0x1p-116 * kFeatures) << row;
        }
      }
    }
  }
}

TEST_P(HalfProjection, WhatIsNotFiniteMakesTheSameOfExactProductsAsOfFloat32) {
  NarrowProblem problem(WeightFormat::kBF16, /*rows=*/9, /*outputs=*/6, /*features=*/192);
  problem.SetWeight(3, 0.0f);
  problem.x[problem.params.x_stride + 3] = INFINITY;  // times zero, and times others
  problem.x[2 * problem.params.x_stride + 3] = NAN;
  problem.TakeX();
  const std::vector<float> halves = Project(problem.params, backend());
  problem.params.weight.scales = nullptr;
  const std::vector<float> floats = Project(problem.params, backend());
  for (size_t i = 0; i < floats.size(); ++i) {
    EXPECT_TRUE(std::isnan(floats[i]) ? std::isnan(halves[i]) : halves[i] == floats[i]) << i << ": " << halves[i];
  }
  EXPECT_TRUE(std::isnan(halves[problem.params.y_stride]));
  EXPECT_TRUE(std::isinf(halves[problem.params.y_stride + 1]));
}

// An infinity near the end of the last group, which is not whole.
TEST_P(HalfProjection, AnInfinityOfTheLastFeaturesStaysAnInfinity) {
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kQ8_0}) {
    const int64_t features = IsPlain(format) ? 100 : 96;
    HalfProblem problem(format, /*rows=*/40, /*outputs=*/6, features);
    for (int64_t row = 0; row < 40; ++row) {
      problem.x[row * problem.params.x_stride + features - 1 - row % 4] = INFINITY;
    }
    for (const int64_t rows : {1, 40}) {
      problem.params.rows = rows;
      const std::vector<float> y = Project(problem.params, backend());
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t output = 0; output < 6; ++output) {
          float weights[100];
          WeightRow(problem.params.weight, output, weights);
          const float weight = weights[features - 1 - row % 4];
          const float result = y[row * problem.params.y_stride + output];
          EXPECT_TRUE(weight == 0.0f ? std::isnan(result) : std::isinf(result))
              << WeightFormatName(format) << ", " << row << ", " << output << ": " << result;
        }
      }
    }
  }
}

// The weights' parts meet an infinity one by one, so it may become a NaN, but no number.
TEST_P(HalfProjection, AnInfinityMeetsScaleAndOffsetOfAWeightApart) {
  NarrowProblem problem(WeightFormat::kQ4_K, /*rows=*/40, /*outputs=*/6, /*features=*/256);
  for (int64_t row = 0; row < 40; row += 2) problem.x[row * problem.params.x_stride + 5 * row] = INFINITY;
  problem.TakeX();
  for (const int64_t rows : {1, 4, 8, 40}) {
    problem.params.rows = rows;
    const std::vector<float> y = Project(problem.params, backend());
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t output = 0; output < 6; ++output) {
        EXPECT_EQ(std::isfinite(y[row * problem.params.y_stride + output]), row % 2 != 0) << row << ", " << output;
      }
    }
  }
}

// Rows that no vector load may read.
TEST_P(HalfProjection, InputsThatAreNotAlignedHaveTheSameBits) {
  for (const WeightFormat format : kHalved) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int64_t rows : {1, 3, 8, 40}) {
        constexpr int64_t kFeatures = 256, kStride = kFeatures + 1;
        NarrowProblem problem(format, rows, /*outputs=*/37, kFeatures, dtype);
        const std::vector<float> aligned = Project(problem.params, backend());
        const size_t element = DTypeSize(dtype);
        std::vector<char> shifted((1 + rows * kStride) * element);
        for (int64_t row = 0; row < rows; ++row) {
          std::memcpy(&shifted[(1 + row * kStride) * element], &problem.narrow[row * problem.params.x_stride * element],
                      kFeatures * element);
        }
        problem.params.x = {shifted.data() + element, dtype};
        problem.params.x_stride = kStride;
        EXPECT_TRUE(BitEqual(Project(problem.params, backend()), aligned)) << WeightFormatName(format) << ", " << rows;
      }
    }
  }
}

// The order of projection_args.h, for Q8_0.
TEST_P(HalfProjection, ExactProductsOfIntegersAreSummedByBlock) {
  constexpr int64_t kOutputs = 37;
  for (const int64_t features : {32, 96, 768}) {
    for (const int64_t rows : {1, 3, 7, 40}) {
      NarrowProblem problem(WeightFormat::kQ8_0, rows, kOutputs, features);
      const std::vector<float> y = Project(problem.params, backend());
      std::vector<float> x(problem.x.size());
      ConvertToFloat(problem.x_dtype, problem.narrow.data(), x.size(), x.data());
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t output = 0; output < kOutputs; ++output) {
          const float* const of_x = x.data() + row * problem.params.x_stride;
          const uint8_t* const of_w = &problem.weights.bytes[output * RowBytes(WeightFormat::kQ8_0, features)];
          float sum = 0.0f;
          for (int64_t group = 0; group < features; group += kHalfGroup) {
            float of_group = 0.0f;
            for (int64_t block = group; block < std::min(features, group + kHalfGroup); block += kHalfBlock) {
              const uint8_t* const bytes = of_w + block / kHalfBlock * BlockOf(WeightFormat::kQ8_0).bytes;
              uint16_t d;
              std::memcpy(&d, bytes, sizeof(d));
              float dot = 0.0f;  // sums are scaled by powers of two, which changes no bit
              for (int i = 0; i < kHalfBlock; ++i) {
                dot = std::fma(of_x[block + i], static_cast<float>(static_cast<int8_t>(bytes[2 + i])), dot);
              }
              of_group = std::fma(F16ToFloat(d), dot, of_group);
            }
            sum += of_group;
          }
          ASSERT_EQ(y[row * problem.params.y_stride + output], sum)
              << features << " features, " << row << ", " << output;
        }
      }
    }
  }
}

// Factors at the ends of fp16: subnormal ones, the greatest, none, and what is not finite.
TEST_P(HalfProjection, IntegersHaveAnyFactors) {
  for (const WeightFormat format : kIntegers) {
    for (const uint16_t bits : {0x0001, 0x03ff, 0x0000, 0x8000, 0x8001, 0x7bff, 0xfbff, 0x7c00, 0x7e00}) {
      NarrowProblem problem(format, /*rows=*/40, /*outputs=*/37, /*features=*/768);
      const FactorOffsets factors = FactorsAt(format);
      const size_t block = static_cast<size_t>(BlockOf(format).bytes);
      const size_t of_row = static_cast<size_t>(RowBytes(format, 768));
      for (size_t at = 5 * of_row; at < 6 * of_row; at += block) {
        std::memcpy(&problem.weights.bytes[at + factors.d], &bits, sizeof(bits));
      }
      for (const int64_t rows : {1, 4, 8, 40}) {
        problem.params.rows = rows;
        std::vector<float> y = Project(problem.params, backend()), expected = Expected(problem.params);
        for (int64_t row = 0; row < rows; ++row) {
          float& spoilt = y[row * problem.params.y_stride + 5];
          if (bits >= 0x7c00 && bits < 0x8000) {
            EXPECT_FALSE(std::isfinite(spoilt)) << WeightFormatName(format) << " " << bits;
            spoilt = expected[row * problem.params.y_stride + 5] = 0.0f;
          }
        }
        EXPECT_LE(RelativeNormError(y, expected), kTolerance) << WeightFormatName(format) << " " << bits;
      }
    }
  }
}

TEST(RowScales, ExactProductsHaveNoneForAMatrixThatIsNotOfScaledHalves) {
  const auto fits = [](const std::vector<float>& row) {
    const std::vector<float> rows = {1.0f, -0.5f, 0.0f, row[0], row[1], row[2]};
    return !RowScalesOf(PlainMatrix(DType::kF32, rows.data(), 2, 3), ProductMath::kExact).empty();
  };
  EXPECT_TRUE(fits({0.0f, 0.0f, -0.0f}));
  EXPECT_TRUE(fits({1.0f, 0x1.ffcp0f, 0x1p-28f}));
  EXPECT_FALSE(fits({1.0f, 0x1.ffcp0f, 0x1.ffcp-29f}));
  EXPECT_TRUE(fits({0x1.ffcp127f, 0x1p99f, 0.0f}));
  EXPECT_FALSE(fits({1.0f, 0x1.ffep0f, 1.0f}));  // 12 bits
  EXPECT_FALSE(fits({1.0f, INFINITY, 1.0f}));
  EXPECT_FALSE(fits({1.0f, NAN, 1.0f}));
  EXPECT_TRUE(fits({0x1p-88f, 0x1p-116f, 0.0f}));
  EXPECT_FALSE(fits({0x1p-89f, 0x1p-117f, 0.0f}));  // the scale has an end
  const float inexact[] = {1.0f, 0.1f};
  EXPECT_EQ(RowScalesOf(PlainMatrix(DType::kF32, inexact, 1, 2), ProductMath::kHalf), std::vector<float>{0x1p14f});
}

TEST_P(HalfProjection, WeightsWithoutScalesKeepExactProducts) {
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kQ8_0}) {
    Problem problem(format, /*rows=*/5, /*outputs=*/40, /*features=*/256);
    const std::vector<float> exact = Project(problem.params, backend());
    problem.params.math = ProductMath::kHalf;
    EXPECT_TRUE(BitEqual(Project(problem.params, backend()), exact)) << WeightFormatName(format);
  }
}

}  // namespace
}  // namespace gdn::half_projection_test
