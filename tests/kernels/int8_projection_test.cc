// Projections of inputs that are rounded to int8: those of the reference, whatever computes them.

#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "base/product_math.h"
#include "hwy/targets.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/processor.h"
#include "kernels/projection/projection.h"
#include "tests/kernels/quantized_problem.h"
#include "tests/kernels/rounded_projection.h"
#include "tests/support/compare.h"

namespace gdn::int8_projection_test {
namespace {

class Int8Projection : public QuantizedProjection {};
GDN_ON_EVERY_BACKEND(Int8Projection);

TEST_P(Int8Projection, MatchesTheReferenceOfRoundedInputs) {
  ExpectReferenceOnEveryPath<Int8Problem>(backend(), Taken(), /*features=*/512 + 256, /*large=*/on_cpu());
}

// Blocks of 32 alone may be an odd number, and an input of a block may dwarf the others.
TEST_P(Int8Projection, TakesAnyNumberOfBlocksAndAnyRangeOfInputs) {
  for (const WeightFormat format : Taken()) {
    const int64_t block = BlockOf(format).weights;
    for (const int64_t features : {block, 3 * block, 5 * block}) {
      if (features % kInt8Block != 0) continue;  // F8_E4M3
      for (const int64_t rows : {1, 7, 40}) {
        Int8Problem problem(format, rows, /*outputs=*/37, features);
        for (int64_t row = 0; row < rows; ++row) {
          float* x = problem.x.data() + row * problem.params.x_stride;
          x[row % features] = 1e4f;
          for (int64_t i = 0; i < kInt8Block; ++i) x[i] *= row % 3 == 0 ? 0.0f : row % 3 == 1 ? 1e-20f : 1e20f;
        }
        EXPECT_LE(RelativeNormError(Project(problem.params, backend()), Expected(problem.params)), kTolerance)
            << WeightFormatName(format) << ", " << features << " features, " << rows << " rows";
      }
    }
  }
}

TEST_P(Int8Projection, ARowHasTheSameBitsAmongAnyRowsOnAnyPathAndParallelism) {
  ExpectTheSameBitsAmongAnyRows<Int8Problem>(backend(), OthersOfTheSameBits(), Taken(), /*rows=*/47, /*features=*/256);
}

TEST_P(Int8Projection, AnOutputHasTheSameBitsAmongAnyOutputs) {
  for (const WeightFormat format : Taken()) {
    Int8Problem problem(format, /*rows=*/9, /*outputs=*/90, /*features=*/256);
    const std::vector<float> all = Project(problem.params, backend());
    ProjectionParams part = problem.params;
    part.weight.rows = 23;
    part.weight.data = problem.weights.bytes.data() + 16 * RowBytes(format, 256);
    if (format == WeightFormat::kF8E4M3) continue;  // whose scales are of 128 rows
    const std::vector<float> some = Project(part, backend());
    for (int64_t row = 0; row < part.rows; ++row) {
      for (int64_t output = 0; output < part.weight.rows; ++output) {
        ASSERT_EQ(some[row * part.y_stride + output], all[row * part.y_stride + output + 16])
            << WeightFormatName(format) << " " << row << ", " << output;
      }
    }
  }
}

TEST_P(Int8Projection, WhatIsNotFiniteStaysInItsRowsAndOutputs) {
  for (const WeightFormat format : Taken()) {
    if (format == WeightFormat::kF8E4M3) continue;
    for (const int64_t rows : {2, 9, 40}) {
      Int8Problem problem(format, rows, /*outputs=*/6, /*features=*/512);
      const std::vector<float> clean = Project(problem.params, backend());
      const uint16_t nan = 0x7e00;
      const size_t at = 2 * static_cast<size_t>(RowBytes(format, 512)) + static_cast<size_t>(FactorsAt(format).d);
      std::memcpy(&problem.weights.bytes[at], &nan, sizeof(nan));
      problem.x[problem.params.x_stride + 3] = rows == 2 ? INFINITY : NAN;
      const std::vector<float> spoilt = Project(problem.params, backend());
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t output = 0; output < 6; ++output) {
          const int64_t i = row * problem.params.y_stride + output;
          if (row == 1 || output == 2) {
            EXPECT_TRUE(std::isnan(spoilt[i])) << WeightFormatName(format) << " " << row << ", " << output;
          } else {
            EXPECT_EQ(spoilt[i], clean[i]) << WeightFormatName(format) << " " << row << ", " << output;
          }
        }
      }
    }
  }
}

TEST_P(Int8Projection, ReadsAndWritesEveryDtype) { ExpectEveryDtype<Int8Problem>(backend(), Taken()); }

// Plain weights and F8_E4M3 have no integers to multiply: their products stay exact.
TEST_P(Int8Projection, OtherWeightsKeepExactProducts) {
  Problem problem(WeightFormat::kF8E4M3, /*rows=*/5, /*outputs=*/40, /*features=*/256);
  for (ProjectionParams params : {problem.params, problem.Widened()}) {
    if (!backend().info().TakesWeights(params.weight.format)) continue;
    const std::vector<float> exact = Project(params, backend());
    params.math = ProductMath::kInt8;
    EXPECT_TRUE(BitEqual(Project(params, backend()), exact)) << WeightFormatName(params.weight.format);
  }
}

// Half a percent is what the docs say; of random inputs, whose largest is about 2.5 of their deviation in a block.
TEST_P(Int8Projection, ErrsByHalfAPercentOfExactProducts) {
  for (const WeightFormat format : Taken()) {
    if (!HasIntegerWeights(format)) continue;
    Int8Problem problem(format, /*rows=*/9, /*outputs=*/64, /*features=*/2048);
    const std::vector<float> rounded = Project(problem.params, backend());
    problem.params.math = ProductMath::kExact;
    const double error = RelativeNormError(rounded, Expected(problem.params));
    EXPECT_LE(error, 0.008) << WeightFormatName(format);
    EXPECT_GE(error, 0.001) << WeightFormatName(format) << ": inputs were not rounded";
  }
}

TEST(Int8ProjectionOnACpu, EveryInstructionSetMatchesTheReferenceAndEachOther) {
  const auto backend = *MakeCpuBackend({.threads = 2});
  int targets = 0;
  for (const WeightFormat format : QuantisedFormats()) {
    for (const int64_t rows : {1, 4, 9, 40}) {
      Int8Problem problem(format, rows, /*outputs=*/37, /*features=*/256);
      const std::vector<float> expected = Expected(problem.params);
      for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
        if (!UseSimdTarget(absl::AsciiStrToLower(hwy::TargetName(target))).ok()) continue;
        ++targets;
        EXPECT_LE(RelativeNormError(Project(problem.params, *backend), expected), kTolerance)
            << WeightFormatName(format) << " " << hwy::TargetName(target);
      }
    }
  }
  EXPECT_GE(targets, 2);
  ASSERT_EQ(UseSimdTarget(""), absl::OkStatus());
}

}  // namespace
}  // namespace gdn::int8_projection_test
