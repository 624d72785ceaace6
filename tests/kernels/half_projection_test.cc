// Projections of fp16 numbers: those of the reference, whatever computes them.

#include <cmath>
#include <cstring>

#include "base/product_math.h"
#include "kernels/projection/projection.h"
#include "tests/kernels/quantized_problem.h"
#include "tests/kernels/rounded_projection.h"
#include "tests/support/compare.h"

namespace gdn::half_projection_test {
namespace {

constexpr WeightFormat kPlain[] = {WeightFormat::kBF16, WeightFormat::kF16, WeightFormat::kF32};

// A problem of inputs and weights that are rounded to fp16. Rows of weights have scales of their own.
struct HalfProblem : Problem {
  HalfProblem(WeightFormat format, int64_t rows, int64_t outputs, int64_t features)
      : Problem(format, rows, outputs, features) {
    params.math = ProductMath::kHalf;
    TakeScales();
  }
  void TakeScales() {
    scales = RowScalesOf(params.weight);
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
}

TEST_P(HalfProjection, TakesAnyNumberOfFeaturesAndAnyRangeOfValues) {
  for (const WeightFormat format : kPlain) {
    for (const int64_t features : {1, 7, 32, 64, 65, 100, 200, 1000}) {
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
  for (const WeightFormat format : kPlain) {
    HalfProblem problem(format, /*rows=*/9, /*outputs=*/64, /*features=*/2048);
    const std::vector<float> rounded = Project(problem.params, backend());
    problem.params.math = ProductMath::kExact;
    const double error = RelativeNormError(rounded, Expected(problem.params));
    EXPECT_LE(error, 3e-4) << WeightFormatName(format);
    EXPECT_GE(error, 5e-5) << WeightFormatName(format) << ": inputs were not rounded";
  }
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
