// Projections of quantised weights: the bits of the same call over the weights' float32 values.

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "absl/strings/ascii.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "hwy/targets.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/processor.h"
#include "kernels/projection/projection.h"
#include "kernels/projection/projection_paths.h"
#include "tests/kernels/guarded_bytes.h"
#include "tests/kernels/quantized_problem.h"
#include "tests/support/compare.h"

namespace gdn::quantized_projection_test {
namespace {

GDN_ON_EVERY_BACKEND(QuantizedProjection);

TEST_P(QuantizedProjection, HasTheBitsOfTheWeightsInFloat32) {
  for (const WeightFormat format : Taken()) {
    for (const int64_t outputs : {1, 3, 4, 37, 131}) {
      for (const int64_t rows : {1, 2, 3, 6, 7, 12, 13, 25, 130}) {
        if (rows * outputs > 131 * 25 && !on_cpu()) continue;
        Problem problem(format, rows, outputs, /*features=*/512 + 256);
        for (const ProjectionPath path : kPaths) {
          problem.params.path = path;
          const std::vector<float> expected = Project(problem.Widened(), backend());
          ASSERT_TRUE(BitEqual(Project(problem.params, backend()), expected))
              << WeightFormatName(format) << ", " << rows << " rows, " << outputs << " outputs";
        }
      }
    }
  }
}

TEST_P(QuantizedProjection, MatchesReference) {
  for (const WeightFormat format : Taken()) {
    for (const int64_t rows : {1, 2, 9, 40}) {
      Problem problem(format, rows, /*outputs=*/70, /*features=*/2048);
      EXPECT_LE(RelativeNormError(Project(problem.params, backend()), Expected(problem.params)), kTolerance)
          << WeightFormatName(format) << ", " << rows << " rows";
    }
  }
}

TEST_P(QuantizedProjection, ARowHasTheSameBitsAmongAnyRowsAndOnAnyParallelism) {
  const auto others = OthersOfTheSameBits();
  for (const WeightFormat format : Taken()) {
    Problem problem(format, /*rows=*/27, /*outputs=*/131, /*features=*/256);
    const std::vector<float> all = Project(problem.params, backend());
    for (const int64_t rows : {1, 2, 3, 8}) {
      ProjectionParams part = problem.params;
      part.rows = rows;
      part.x = part.x.From(5 * part.x_stride);
      const auto expected = absl::MakeConstSpan(all).subspan(5 * part.y_stride, rows * part.y_stride);
      EXPECT_TRUE(BitEqual(Project(part, *others[rows % others.size()]), expected))
          << WeightFormatName(format) << ", " << rows << " rows";
    }
  }
}

// Blocks of 128 columns may be cut, and so may what a kernel takes at a time.
TEST_P(QuantizedProjection, Fp8TakesAnyNumberOfColumns) {
  if (!backend().info().TakesWeights(WeightFormat::kF8E4M3)) GTEST_SKIP() << "is refused";
  for (const int64_t features : {1, 31, 32, 96, 127, 129, 320, 333}) {
    for (const int64_t rows : {1, 5}) {
      Problem problem(WeightFormat::kF8E4M3, rows, /*outputs=*/133, features);
      EXPECT_TRUE(BitEqual(Project(problem.params, backend()), Project(problem.Widened(), backend()))) << features;
    }
  }
}

// One feature of x is 1 and the others 0, so y is the weight itself: every code of every format.
TEST_P(QuantizedProjection, DecodesEveryWeight) {
  for (const WeightFormat format : Taken()) {
    const int64_t features = 256;
    Problem problem(format, features, /*outputs=*/40, features);
    std::vector<float> unit(features * features, 0.0f);
    for (int64_t i = 0; i < features; ++i) unit[i * features + i] = 1.0f;
    for (const int64_t rows : {int64_t{1}, int64_t{2}, features}) {
      for (int64_t first = 0; first + rows <= features; first += rows) {
        ProjectionParams params = problem.params;
        params.rows = rows;
        params.x = unit.data() + first * features;
        params.x_stride = features;
        const std::vector<float> y = Project(params, backend());
        for (int64_t output = 0; output < 40; ++output) {
          float expected[features];
          WeightRow(params.weight, output, expected);
          for (int64_t row = 0; row < rows; ++row) {
            ASSERT_EQ(y[row * params.y_stride + output], expected[first + row]) << WeightFormatName(format);
          }
        }
      }
    }
  }
}

// Factors at the ends of float16: subnormal ones, the greatest, and none at all.
TEST_P(QuantizedProjection, ExtremeFactorsAreDecodedAsElsewhere) {
  for (const WeightFormat format : Taken()) {
    if (format == WeightFormat::kF8E4M3) continue;
    for (const uint16_t bits : {0x0001, 0x03ff, 0x0000, 0x8000, 0x8001, 0x7bff, 0xfbff}) {
      Problem problem(format, /*rows=*/3, /*outputs=*/5, /*features=*/512);
      const FactorOffsets factors = FactorsAt(format);
      const size_t block = static_cast<size_t>(BlockOf(format).bytes);
      for (size_t at = 0; at < problem.weights.bytes.size(); at += block) {
        std::memcpy(&problem.weights.bytes[at + factors.d], &bits, sizeof(bits));
        if (factors.m >= 0) std::memcpy(&problem.weights.bytes[at + factors.m], &bits, sizeof(bits));
      }
      for (const int64_t rows : {1, 3}) {
        problem.params.rows = rows;
        EXPECT_TRUE(BitEqual(Project(problem.params, backend()), Project(problem.Widened(), backend())))
            << WeightFormatName(format) << " " << bits;
      }
    }
  }
}

TEST_P(QuantizedProjection, NaNAndInfinityStayInTheirRowsAndOutputs) {
  for (const WeightFormat format : Taken()) {
    for (const int64_t rows : {2, 9}) {
      Problem problem(format, rows, /*outputs=*/6, /*features=*/512);
      const std::vector<float> clean = Project(problem.params, backend());
      if (format == WeightFormat::kF8E4M3) {
        problem.weights.bytes[2 * 512 + 77] = 0x7f;
      } else {
        const uint16_t nan = 0x7e00;
        const size_t row = 2 * static_cast<size_t>(RowBytes(format, 512));
        std::memcpy(&problem.weights.bytes[row + FactorsAt(format).d], &nan, sizeof(nan));
      }
      problem.x[problem.params.x_stride + 3] = INFINITY;
      const std::vector<float> spoilt = Project(problem.params, backend());
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t output = 0; output < 6; ++output) {
          const int64_t at = row * problem.params.y_stride + output;
          if (row == 1 || output == 2) {
            EXPECT_FALSE(std::isfinite(spoilt[at])) << WeightFormatName(format) << " " << row << ", " << output;
          } else {
            EXPECT_EQ(spoilt[at], clean[at]) << WeightFormatName(format) << " " << row << ", " << output;
          }
        }
      }
    }
  }
}

TEST_P(QuantizedProjection, ReadsAndWritesEveryDtype) {
  for (const WeightFormat format : Taken()) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int64_t rows : {1, 7}) {
        Problem problem(format, rows, /*outputs=*/45, /*features=*/256);
        std::vector<uint16_t> x(problem.x.size()), y(static_cast<size_t>(rows * problem.params.y_stride));
        ConvertFromFloat(problem.x.data(), x.size(), dtype, x.data());
        const auto run = [&](ProjectionParams params) {
          params.x = {x.data(), dtype};
          params.y = {y.data(), dtype};
          EXPECT_EQ(ProjectPacked(params, backend()), absl::OkStatus());
          return y;
        };
        EXPECT_EQ(run(problem.params), run(problem.Widened())) << WeightFormatName(format);
      }
    }
  }
}

TEST_P(QuantizedProjection, WhatABackendDoesNotTakeIsRefused) {
  for (const WeightFormat format : QuantisedFormats()) {
    if (backend().info().TakesWeights(format)) continue;
    Problem problem(format, /*rows=*/2, /*outputs=*/5, /*features=*/256);
    std::vector<float> y(static_cast<size_t>(2 * problem.params.y_stride), kUntouched);
    problem.params.y = y.data();
    const absl::Status status = backend().Projection(problem.params);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_EQ(ErrorReason(status), reason::kDeviceUnsupported);
    for (const float value : y) EXPECT_EQ(value, kUntouched);
  }
}

// The library GEMM itself: whether a call takes it depends on the instruction set.
TEST(QuantizedProjectionGemm, OfTheLibraryHasTheBitsOfTheWeightsInFloat32) {
  ThreadPool pool(2);
  const auto gemm = [&](const ProjectionParams& params) { return ProjectSequenceGemm(params, pool); };
  for (const WeightFormat format : QuantisedFormats()) {
    Problem problem(format, /*rows=*/50, /*outputs=*/300, /*features=*/512);
    problem.params.path = ProjectionPath::kSequenceGemm;
    const std::vector<float> y = Project(problem.params, gemm);
    EXPECT_TRUE(BitEqual(y, Project(problem.Widened(), gemm))) << WeightFormatName(format);
    EXPECT_LE(RelativeNormError(y, Expected(problem.params)), kTolerance) << WeightFormatName(format);
  }
}

// A matrix may be the last thing in the mapping of its file. Every instruction set that this processor has.
TEST(QuantisedProjection, EveryInstructionSetMatchesTheReferenceAndReadsNothingPastTheMatrix) {
  const auto backend = MakeCpuBackend({.threads = 2});
  ASSERT_TRUE(backend.ok());
  int targets = 0;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    // This file may list more than the kernels were compiled for.
    if (!UseSimdTarget(absl::AsciiStrToLower(hwy::TargetName(target))).ok()) continue;
    ++targets;
    for (const WeightFormat format : QuantisedFormats()) {
      for (const int64_t rows : {1, 2, 4, 9}) {
        Problem problem(format, rows, /*outputs=*/5, /*features=*/256);
        const GuardedBytes guarded(std::string(static_cast<const char*>(problem.params.weight.data),
                                               static_cast<size_t>(5 * RowBytes(format, 256))));
        const auto run = [&](const ProjectionParams& params) { return (*backend)->Projection(params); };
        const std::vector<float> expected = Project(problem.params, run);
        EXPECT_LE(RelativeNormError(expected, Expected(problem.params)), kTolerance)
            << WeightFormatName(format) << " " << hwy::TargetName(target);
        problem.params.weight.data = guarded.data();
        EXPECT_EQ(Project(problem.params, run), expected) << WeightFormatName(format) << " " << hwy::TargetName(target);
      }
    }
  }
  EXPECT_GE(targets, 2);  // the scalar one, and this processor's best
  ASSERT_EQ(UseSimdTarget(""), absl::OkStatus());
}

}  // namespace
}  // namespace gdn::quantized_projection_test
