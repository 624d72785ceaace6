#include "kernels/projection/projection.h"

#include <cmath>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/projection/projection_paths.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace gdn {
namespace {

constexpr double kTolerance = 1e-6;
constexpr float kUntouched = -7.0f;

// x [rows, features], W [outputs, features] stored as `dtype`, and y with gaps between its rows.
struct Problem {
  Problem(DType dtype, int64_t rows, int64_t outputs, int64_t features, uint64_t seed = 5) {
    Random random(seed);
    x = random.Normal(rows * (features + 2));
    const std::vector<float> w = random.Normal(outputs * features);
    stored.resize(w.size() * DTypeSize(dtype));
    ConvertFromFloat(w.data(), w.size(), dtype, stored.data());
    params = {.rows = rows,
              .x = x.data(),
              .x_stride = features + 2,
              .weight = {dtype, stored.data(), outputs, features},
              .y_stride = outputs + 3};
  }

  std::vector<float> Run(ProjectionPath path, ThreadPool& pool) {
    std::vector<float> y(params.rows * params.y_stride, kUntouched);
    params.path = path;
    params.y = y.data();
    const absl::Status status = ProjectionCpu(params, pool);
    EXPECT_TRUE(status.ok()) << status;
    return y;
  }

  std::vector<float> Reference() {
    std::vector<float> y(params.rows * params.y_stride, kUntouched);
    params.y = y.data();
    ProjectionReference(params);
    return y;
  }

  std::vector<float> x;
  std::vector<char> stored;
  ProjectionParams params;
};

class ProjectionOfDtype : public testing::TestWithParam<DType> {};

TEST_P(ProjectionOfDtype, MatchesReferenceForEveryTailOfRowsOutputsAndFeatures) {
  ThreadPool pool(2);
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 13, 31, 70}) {
    for (int64_t outputs : {1, 3, 4, 37, 300}) {
      for (int64_t features : {1, 7, 16, 33, 128}) {
        Problem problem(GetParam(), rows, outputs, features);
        const std::vector<float> expected = problem.Reference();
        for (ProjectionPath path : {ProjectionPath::kRowStable, ProjectionPath::kSequenceGemm}) {
          ASSERT_LE(RelativeNormError(problem.Run(path, pool), expected), kTolerance)
              << rows << " x [" << outputs << ", " << features << "]";
        }
      }
    }
  }
}

TEST_P(ProjectionOfDtype, LeavesWhatLiesBetweenItsRowsAlone) {
  ThreadPool pool(2);
  for (ProjectionPath path : {ProjectionPath::kRowStable, ProjectionPath::kSequenceGemm}) {
    for (int64_t rows : {2, 70}) {
      Problem problem(GetParam(), rows, /*outputs=*/37, /*features=*/20);
      const std::vector<float> y = problem.Run(path, pool);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t gap = 37; gap < 40; ++gap) ASSERT_EQ(y[row * 40 + gap], kUntouched);
      }
    }
  }
}

TEST_P(ProjectionOfDtype, ARowHasTheSameBitsAmongAnyRowsAndOnAnyThreadCount) {
  ThreadPool one(1);
  ThreadPool three(3);
  constexpr int64_t kOutputs = 131;
  constexpr int64_t kFeatures = 1037;
  constexpr int64_t kMaxRows = 128;
  Problem problem(GetParam(), kMaxRows, kOutputs, kFeatures);
  const std::vector<float> all = problem.Run(ProjectionPath::kRowStable, three);
  const int64_t stride = problem.params.y_stride;
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 24, 25, 127}) {
    for (int64_t first : {int64_t{0}, int64_t{1}, kMaxRows - rows}) {
      Problem part = problem;
      part.params.rows = rows;
      part.params.x = problem.x.data() + first * problem.params.x_stride;
      part.params.weight.data = problem.stored.data();
      const std::vector<float> expected(all.begin() + first * stride, all.begin() + (first + rows) * stride);
      ASSERT_TRUE(BitEqual(part.Run(ProjectionPath::kRowStable, one), expected)) << rows << " rows from " << first;
      ASSERT_TRUE(BitEqual(part.Run(ProjectionPath::kRowStable, three), expected)) << rows << " rows from " << first;
    }
  }
}

// The library GEMM itself: whether a call takes it depends on the instruction set.
TEST_P(ProjectionOfDtype, TheLibraryGemmMatchesReferenceWithTheSameBitsOnAnyThreadCount) {
  ThreadPool one(1);
  ThreadPool three(3);
  for (int64_t rows : {1, 9, 40, 200}) {
    for (int64_t outputs : {1, 256, 700}) {
      Problem problem(GetParam(), rows, outputs, /*features=*/150);
      const auto run = [&problem](ThreadPool& pool) {
        std::vector<float> y(problem.params.rows * problem.params.y_stride, kUntouched);
        problem.params.y = y.data();
        const absl::Status status = ProjectSequenceGemm(problem.params, pool);
        EXPECT_TRUE(status.ok()) << status;
        return y;
      };
      const std::vector<float> y = run(one);
      EXPECT_LE(RelativeNormError(y, problem.Reference()), kTolerance) << rows << " rows, " << outputs << " outputs";
      EXPECT_TRUE(BitEqual(y, run(three))) << rows << " rows, " << outputs << " outputs";
    }
  }
}

TEST_P(ProjectionOfDtype, OneRowsNaNStaysItsOwn) {
  ThreadPool pool(2);
  Problem problem(GetParam(), /*rows=*/40, /*outputs=*/20, /*features=*/30);
  const std::vector<float> clean[] = {problem.Run(ProjectionPath::kRowStable, pool),
                                      problem.Run(ProjectionPath::kSequenceGemm, pool)};
  problem.x[7 * problem.params.x_stride + 3] = NAN;
  const std::vector<float> dirty[] = {problem.Run(ProjectionPath::kRowStable, pool),
                                      problem.Run(ProjectionPath::kSequenceGemm, pool)};
  const int64_t stride = problem.params.y_stride;
  for (int path = 0; path < 2; ++path) {
    for (int64_t i = 0; i < 40 * stride; ++i) {
      if (i / stride == 7 && i % stride < 20) {
        EXPECT_TRUE(std::isnan(dirty[path][i]));
      } else {
        EXPECT_EQ(clean[path][i], dirty[path][i]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ProjectionOfDtype, testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& dtype) { return std::string(DTypeName(dtype.param)); });

// One feature of x = 1, so y is the weight itself: normals, subnormals, zeros and both signs of every 16-bit exponent.
TEST(Projection, WidensEveryFinite16BitWeightExactly) {
  ThreadPool pool(1);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
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
                                  .weight = {dtype, weights.data(), outputs, 1},
                                  .y = y.data(),
                                  .y_stride = outputs};
    ASSERT_TRUE(ProjectionCpu(params, pool).ok());
    for (int64_t i = 0; i < outputs; ++i) {
      ASSERT_EQ(y[i], dtype == DType::kBF16 ? BF16ToFloat(weights[i]) : F16ToFloat(weights[i])) << weights[i];
    }
  }
}

TEST(Projection, NoRowsOrNoOutputsTouchNothing) {
  ThreadPool pool(1);
  EXPECT_TRUE(ProjectionCpu({.rows = 0, .weight = {DType::kF32, nullptr, 4, 4}}, pool).ok());
  EXPECT_TRUE(ProjectionCpu({.rows = 4, .weight = {DType::kF32, nullptr, 0, 4}}, pool).ok());
}

TEST(Projection, BadParamsAreRefusedByName) {
  const Problem good(DType::kF32, 2, 3, 4);
  float y[16];
  const auto refusal = [&](auto change) {
    ProjectionParams params = good.params;
    params.y = y;
    change(params);
    const absl::Status status = ValidateProjection(params);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](auto& p) { p.x = nullptr; }), testing::HasSubstr("x is null"));
  EXPECT_THAT(refusal([](auto& p) { p.y = nullptr; }), testing::HasSubstr("y is null"));
  EXPECT_THAT(refusal([](auto& p) { p.weight.data = nullptr; }), testing::HasSubstr("weight.data is null"));
  EXPECT_THAT(refusal([](auto& p) { p.x_stride = 3; }), testing::HasSubstr("x_stride is 3; expected 4 or more"));
  EXPECT_THAT(refusal([](auto& p) { p.y_stride = 2; }), testing::HasSubstr("y_stride is 2"));
  EXPECT_THAT(refusal([](auto& p) { p.rows = -1; }), testing::HasSubstr("rows is -1"));
  EXPECT_THAT(refusal([](auto& p) { p.weight.cols = 0; }), testing::HasSubstr("weight.cols is 0"));
}

}  // namespace
}  // namespace gdn
