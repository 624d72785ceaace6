#include "kernels/projection/projection.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "kernels/projection/projection_paths.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"
#include "tests/support/test_backend.h"

namespace gdn::projection_test {
namespace {

constexpr double kTolerance = 1e-6;
constexpr float kUntouched = -7.0f;
constexpr ProjectionPath kPaths[] = {ProjectionPath::kRowStable, ProjectionPath::kSequenceGemm};
constexpr DType kDtypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// x [rows, features], W [outputs, features] stored as `dtype`, and y with gaps between its rows.
struct Problem {
  Problem(DType dtype, int64_t rows, int64_t outputs, int64_t features) {
    Random random(5);
    x = random.Normal(rows * (features + 4));
    const std::vector<float> w = random.Normal(outputs * features);
    stored.resize(w.size() * DTypeSize(dtype));
    ConvertFromFloat(w.data(), w.size(), dtype, stored.data());
    params = {.rows = rows,
              .x = x.data(),
              .x_stride = features + 4,
              .weight = PlainMatrix(dtype, stored.data(), outputs, features),
              .y_stride = outputs + 3};
  }

  template <typename Operator>
  std::vector<float> Run(ProjectionPath path, Operator run) {
    std::vector<float> y(params.rows * params.y_stride, kUntouched);
    params.path = path;
    params.y = y.data();
    EXPECT_EQ(run(params), absl::OkStatus());
    return y;
  }
  std::vector<float> Run(ProjectionPath path, Backend& backend) {
    return Run(path, [&](const ProjectionParams& p) { return backend.Projection(p); });
  }

  std::vector<float> x;
  std::vector<char> stored;
  ProjectionParams params;
};

class Projection : public BackendTest {
 protected:
  // From here on the GPU's GEMM is tiled.
  static constexpr int64_t kGemmRows = 256;
};
GDN_ON_EVERY_BACKEND(Projection);

TEST_P(Projection, ARowHasTheSameBitsAmongAnyRowsAndOnAnyParallelism) {
  const std::vector<std::unique_ptr<Backend>> others = OthersOfTheSameBits();
  const int64_t max_rows = on_cpu() ? 128 : 19;
  for (const DType dtype : kDtypes) {
    for (const int64_t features : {80, on_cpu() ? 1037 : 777}) {
      Problem problem(dtype, max_rows, /*outputs=*/on_cpu() ? 131 : 290, features);
      const std::vector<float> all = problem.Run(ProjectionPath::kRowStable, backend());
      const int64_t stride = problem.params.y_stride;
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 19, 24, 25, 127}) {
        if (rows > max_rows) break;
        for (const int64_t first : {int64_t{0}, int64_t{1}, max_rows - rows}) {
          if (first + rows > max_rows || (!on_cpu() && dtype != DType::kBF16 && first > 0)) continue;
          Problem part = problem;
          part.params.rows = rows;
          part.params.x = problem.x.data() + first * problem.params.x_stride;
          part.params.weight.data = problem.stored.data();
          const std::vector<float> expected(all.begin() + first * stride, all.begin() + (first + rows) * stride);
          ASSERT_TRUE(BitEqual(part.Run(ProjectionPath::kRowStable, *others[rows % others.size()]), expected))
              << DTypeName(dtype) << ": " << rows << " rows from " << first;
        }
      }
    }
  }
}

// Nor has the weights' alignment a part in a sum's order.
TEST_P(Projection, BitsDependOnNeitherAlignmentNorParallelism) {
  Problem problem(DType::kF16, /*rows=*/6, /*outputs=*/200, /*features=*/264);
  const std::vector<float> here = problem.Run(ProjectionPath::kRowStable, backend());
  for (const auto& other : OthersOfTheSameBits()) {
    EXPECT_TRUE(BitEqual(problem.Run(ProjectionPath::kRowStable, *other), here));
  }
  std::vector<char> moved(problem.stored.size() + 2);
  std::memcpy(moved.data() + 2, problem.stored.data(), problem.stored.size());
  problem.params.weight.data = moved.data() + 2;
  EXPECT_TRUE(BitEqual(problem.Run(ProjectionPath::kRowStable, backend()), here));
}

// On matrix units BF16 weights have the prefill's order on both paths, and float32 ones in prefills alone.
TEST_P(Projection, NarrowWeightsAreWidenedExactly) {
  const bool units = absl::StrContains(backend().info().numerics_id, "-mma");
  for (const ProjectionPath path : kPaths) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      Problem narrow(dtype, kGemmRows, /*outputs=*/50, /*features=*/104);
      std::vector<float> widened(50 * 104);
      ConvertToFloat(dtype, narrow.stored.data(), widened.size(), widened.data());
      Problem wide = narrow;
      wide.params.weight = PlainMatrix(DType::kF32, widened.data(), 50, 104);
      const ProjectionPath wide_path = units && dtype == DType::kBF16 ? ProjectionPath::kSequenceGemm : path;
      EXPECT_TRUE(BitEqual(narrow.Run(path, backend()), wide.Run(wide_path, backend()))) << DTypeName(dtype);
    }
  }
}

TEST_P(Projection, GemmRowsDoNotDependOnOtherRows) {
  if (on_cpu()) GTEST_SKIP() << "the library's GEMM promises this for equal row counts only";
  Problem many(DType::kBF16, /*rows=*/330, /*outputs=*/70, /*features=*/100);
  Problem few = many;
  few.params.rows = kGemmRows + 4;
  const std::vector<float> y = few.Run(ProjectionPath::kSequenceGemm, backend());
  EXPECT_TRUE(BitEqual(y, absl::MakeConstSpan(many.Run(ProjectionPath::kSequenceGemm, backend())).first(y.size())));
}

// Whatever kernels their rows choose; and without matrix units both paths have one order.
TEST_P(Projection, OnTheGpuEveryNumberOfRowsHasOneOrderOfSums) {
  if (on_cpu()) GTEST_SKIP() << "the library's GEMM has an order of its own";
  const bool one_order = !absl::StrContains(backend().info().numerics_id, "-mma");
  for (const DType dtype : kDtypes) {
    Problem all(dtype, /*rows=*/300, /*outputs=*/70, /*features=*/776);
    std::vector<float> expected = all.Run(ProjectionPath::kSequenceGemm, backend());
    for (const ProjectionPath path : kPaths) {
      if (!one_order) expected = all.Run(path, backend());
      for (const int64_t rows : {1, 2, 4, 8, 9, 33, 65, 129}) {
        Problem few = all;
        few.params.rows = rows;
        few.params.weight.data = few.stored.data();
        few.params.x = few.x.data();
        const std::vector<float> y = few.Run(path, backend());
        EXPECT_TRUE(BitEqual(y, absl::MakeConstSpan(expected).first(y.size()))) << DTypeName(dtype) << " " << rows;
        few.params.weight.rows = 40;  // of a tile of outputs
        EXPECT_TRUE(
            BitEqual(absl::MakeConstSpan(few.Run(path, backend())).first(40), absl::MakeConstSpan(expected).first(40)))
            << DTypeName(dtype) << " " << rows;
      }
    }
  }
}

// Past a row's last feature lies the next row's first: it must not be read into a sum, not even times zero.
TEST_P(Projection, NaNWeightsAndRowsStayTheirOwn) {
  for (const DType dtype : kDtypes) {
    for (const ProjectionPath path : kPaths) {
      for (const int64_t features : {30, 33, 40}) {
        const int64_t rows = on_cpu() ? 40 : kGemmRows;
        Problem problem(dtype, rows, /*outputs=*/5, features);
        const std::vector<float> clean = problem.Run(path, backend());
        const int64_t stride = problem.params.y_stride;
        const std::vector<float> nans(features, NAN);
        ConvertFromFloat(nans.data(), nans.size(), dtype, problem.stored.data() + 2 * features * DTypeSize(dtype));
        problem.x[7 * problem.params.x_stride + 3] = NAN;
        std::fill_n(problem.x.begin() + 9 * problem.params.x_stride, features, INFINITY);
        const std::vector<float> spoilt = problem.Run(path, backend());
        for (int64_t i = 0; i < rows * stride; ++i) {
          const int64_t row = i / stride, output = i % stride;
          if (output < 5 && (row == 7 || row == 9 || output == 2)) {
            EXPECT_FALSE(std::isfinite(spoilt[i])) << row << ", " << output;
          } else {
            EXPECT_EQ(spoilt[i], clean[i]) << row << ", " << output;
          }
        }
      }
    }
  }
}

TEST_P(Projection, MatricesOfOneCallGiveTheBitsOfEachAlone) {
  for (const ProjectionPath path : kPaths) {
    for (const int64_t rows : {int64_t{3}, kGemmRows}) {
      std::vector<Problem> problems = {{DType::kBF16, rows, 150, 48},
                                       {DType::kF32, rows, 1, 48},
                                       {DType::kF16, rows, 0, 48},
                                       {DType::kBF16, rows, 33, 48}};
      std::vector<std::vector<float>> together, alone;
      std::vector<ProjectionParams> params;
      for (Problem& problem : problems) {
        problem.params.x = problems[0].x.data();
        problem.params.weight.data = problem.stored.data();
        alone.push_back(problem.Run(path, backend()));
        together.emplace_back(alone.back().size(), kUntouched);
        params.push_back(problem.params);
      }
      for (size_t i = 0; i < params.size(); ++i) params[i].y = together[i].data();
      ASSERT_EQ(backend().Projections(params), absl::OkStatus());
      for (size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(BitEqual(together[i], alone[i])) << i;
    }
  }
}

// One feature of x = 1, so y is the weight itself: normals, subnormals, zeros and both signs of every 16-bit exponent.
TEST_P(Projection, WidensEveryFinite16BitWeightExactly) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<uint16_t> weights;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const float value = dtype == DType::kBF16 ? BF16ToFloat(bits) : F16ToFloat(bits);
      if (std::isfinite(value)) weights.push_back(bits);
    }
    const float one = 1.0f;
    const int64_t outputs = static_cast<int64_t>(weights.size());
    std::vector<float> y(outputs);
    const ProjectionParams params{.rows = 1,
                                  .x = &one,
                                  .x_stride = 1,
                                  .weight = PlainMatrix(dtype, weights.data(), outputs, 1),
                                  .y = y.data(),
                                  .y_stride = outputs};
    ASSERT_TRUE(backend().Projection(params).ok());
    for (int64_t i = 0; i < outputs; ++i) {
      ASSERT_EQ(y[i], dtype == DType::kBF16 ? BF16ToFloat(weights[i]) : F16ToFloat(weights[i])) << weights[i];
    }
  }
}

TEST_P(Projection, NoRowsOrNoOutputsTouchNothing) {
  EXPECT_TRUE(backend().Projection({.rows = 0, .weight = PlainMatrix(DType::kF32, nullptr, 4, 4)}).ok());
  EXPECT_TRUE(backend().Projection({.rows = 4, .weight = PlainMatrix(DType::kF32, nullptr, 0, 4)}).ok());
}

// The library GEMM itself: whether a call takes it depends on the instruction set.
TEST(ProjectionGemm, OfTheLibraryMatchesReferenceWithTheSameBitsOnAnyThreadCount) {
  ThreadPool one(1);
  ThreadPool three(3);
  for (const DType dtype : kDtypes) {
    for (const int64_t rows : {1, 9, 40, 200}) {
      for (const int64_t outputs : {1, 256, 700}) {
        SCOPED_TRACE(testing::Message() << DTypeName(dtype) << ", " << rows << " rows, " << outputs << " outputs");
        Problem problem(dtype, rows, outputs, /*features=*/150);
        const auto run = [&problem](ThreadPool& pool) {
          return problem.Run(ProjectionPath::kSequenceGemm,
                             [&pool](const ProjectionParams& params) { return ProjectSequenceGemm(params, pool); });
        };
        const std::vector<float> y = run(one);
        EXPECT_TRUE(BitEqual(y, run(three)));
        const std::vector<float> expected =
            problem.Run(ProjectionPath::kSequenceGemm, [](const ProjectionParams& params) {
              ProjectionReference(params);
              return absl::OkStatus();
            });
        EXPECT_LE(RelativeNormError(y, expected), kTolerance);
      }
    }
  }
}

TEST(ProjectionParams, BadOnesAreRefusedByName) {
  Problem good(DType::kF32, 2, 3, 4);
  float y[16];
  good.params.y = y;
  ExpectRefused<ProjectionParams>(ValidateProjection, good.params,
                                  {{"x is null", [](auto& p) { p.x = nullptr; }},
                                   {"y is null", [](auto& p) { p.y = nullptr; }},
                                   {"weight.data is null", [](auto& p) { p.weight.data = nullptr; }},
                                   {"x_stride is 3; expected 4 or more", [](auto& p) { p.x_stride = 3; }},
                                   {"y_stride is 2", [](auto& p) { p.y_stride = 2; }},
                                   {"rows is -1", [](auto& p) { p.rows = -1; }},
                                   {"weight.cols is 0", [](auto& p) { p.weight.cols = 0; }}});
}

TEST(ProjectionParams, QuantisedWeightsHaveWholeBlocksAndTheirScales) {
  Problem problem(DType::kF32, 2, 3, 256);
  std::vector<float> y(16);
  for (const WeightFormat format : kWeightFormats) {
    if (IsPlain(format)) continue;
    ProjectionParams good = problem.params;
    good.y = y.data();
    good.weight.format = format;
    good.weight.scales = y.data();
    ASSERT_EQ(ValidateProjection(good), absl::OkStatus()) << WeightFormatName(format);
    if (format == WeightFormat::kF8E4M3) {
      ExpectRefused<ProjectionParams>(ValidateProjection, good,
                                      {{"weight.scales is null", [](auto& p) { p.weight.scales = nullptr; }}});
      continue;
    }
    const auto shift = [](auto& p) { p.weight.data = static_cast<const char*>(p.weight.data) + 1; };
    const auto cut = [](auto& p) { p.weight.cols -= 16; };
    ExpectRefused<ProjectionParams>(
        ValidateProjection, good,
        {{"weight.data is no multiple of 2", shift}, {"weight.cols is 240; expected a multiple of", cut}});
  }
}

// The default calls one after the other, which need not share anything.
TEST_P(Projection, OneLaunchRefusesMatricesThatDoNotShareTheirRows) {
  if (on_cpu()) GTEST_SKIP() << "no fused form";
  Problem good(DType::kF32, 2, 4, 8);
  float y[16];
  good.params.y = y;
  const auto call = [&](const ProjectionParams& changed) {
    return backend().Projections(std::vector<ProjectionParams>{good.params, changed});
  };
  ExpectRefused<ProjectionParams>(call, good.params,
                                  {{"x of matrix 1", [](auto& p) { p.x = p.x.From(1); }},
                                   {"rows of matrix 1", [](auto& p) { p.rows = 1; }},
                                   {"x_stride", [](auto& p) { p.x_stride = 9; }},
                                   {"path", [](auto& p) { p.path = ProjectionPath::kSequenceGemm; }},
                                   {"weight.cols", [](auto& p) { p.weight.cols = 7; }},
                                   {"y is null", [](auto& p) { p.y = nullptr; }}});
  EXPECT_THAT(backend().Projections({}), IsInvalid(""));
  EXPECT_THAT(backend().Projections(std::vector<ProjectionParams>(5, good.params)), IsInvalid(""));
}

TEST(OutputsPerTask, LeavesNoThreadWithoutATask) {
  for (const int64_t rows : {1, 24, 25, 512}) {
    for (const int64_t outputs : {32, 2048, 8192}) {
      for (const int threads : {1, 2, 16, 64, 256}) {
        const int64_t each = OutputsPerTask(rows, outputs, threads);
        EXPECT_EQ(each % 12, 0) << "whole tiles of every instruction set";
        EXPECT_LE(each, kMostOutputsPerTask);
        const int64_t tasks = (outputs + each - 1) / each;
        EXPECT_GE(tasks, std::min<int64_t>(threads, outputs / 36)) << rows << " rows, " << outputs << ", " << threads;
      }
    }
  }
}

}  // namespace
}  // namespace gdn::projection_test
