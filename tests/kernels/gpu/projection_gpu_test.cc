#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/projection/projection.h"
#include "tests/kernels/gpu/gpu_layer_data.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace gdn {
namespace {

constexpr double kTolerance = 1e-6;
constexpr int64_t kGemmRows = 256;  // enough for the tiled GEMM

// A weight matrix with its memory, `misalign` elements past a 16-byte boundary.
struct Matrix {
  Matrix(DType dtype, int64_t rows, int64_t cols, Random& random, int misalign = 0)
      : bytes((rows * cols + misalign) * DTypeSize(dtype)) {
    const std::vector<float> values = random.Normal(rows * cols);
    char* data = bytes.data() + misalign * DTypeSize(dtype);
    ConvertFromFloat(values.data(), values.size(), dtype, data);
    weight = {.dtype = dtype, .data = data, .rows = rows, .cols = cols};
  }
  std::vector<char> bytes;
  WeightMatrix weight;
};

// Rows of x and y are longer than needed by `gap` floats.
struct Call {
  Call(const WeightMatrix& weight, int64_t rows, ProjectionPath path, const std::vector<float>& x, int64_t gap = 0)
      : y(rows * (weight.rows + gap), -7.0f) {
    params = {.path = path,
              .rows = rows,
              .x = x.data(),
              .x_stride = weight.cols + gap,
              .weight = weight,
              .y = y.data(),
              .y_stride = weight.rows + gap};
  }
  std::vector<float> y;
  ProjectionParams params;
};

class ProjectionGpuTest : public testing::TestWithParam<int> {
 protected:
  gpu::Stream stream() const { return HostExecutor(GetParam()); }

  void ExpectMatchesReference(const WeightMatrix& weight, int64_t rows, ProjectionPath path, int64_t gap = 0) {
    Random random(rows);
    const std::vector<float> x = random.Normal(rows * (weight.cols + gap));
    Call actual(weight, rows, path, x, gap), expected(weight, rows, path, x, gap);
    const absl::Status status = ProjectionGpu(actual.params, stream());
    ASSERT_TRUE(status.ok()) << status;
    ProjectionReference(expected.params);
    EXPECT_LE(RelativeNormError(actual.y, expected.y), kTolerance)
        << DTypeName(weight.dtype) << " " << rows << " x " << weight.rows << " x " << weight.cols;
    // What lies between rows is not touched.
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < gap; ++i) EXPECT_EQ(actual.y[(row + 1) * actual.params.y_stride - 1 - i], -7.0f);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Waves, ProjectionGpuTest, testing::Values(64, 32),
                         [](const auto& param_info) { return "Wave" + std::to_string(param_info.param); });

TEST_P(ProjectionGpuTest, RowStableMatchesReferenceForAnyShape) {
  Random random(1);
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (int64_t cols : {8, 33, 136, 1100}) {
      const Matrix matrix(dtype, 37, cols, random);
      for (int64_t rows : {1, 2, 3, 8, 11}) ExpectMatchesReference(matrix.weight, rows, ProjectionPath::kRowStable);
    }
  }
  for (int64_t outputs : {60, 300}) {  // enough for two and for four outputs a thread
    const Matrix wide(DType::kBF16, outputs, 72, random);
    for (int64_t rows : {1, 2, 4, 7}) ExpectMatchesReference(wide.weight, rows, ProjectionPath::kRowStable);
  }
  const Matrix deep(DType::kBF16, 3, 4232, random);  // x in more than one piece for one row too
  ExpectMatchesReference(deep.weight, 1, ProjectionPath::kRowStable);
}

TEST_P(ProjectionGpuTest, AnyAlignmentAndStrideWorks) {
  Random random(2);
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    const Matrix matrix(dtype, 21, 40, random, /*misalign=*/1);
    ExpectMatchesReference(matrix.weight, 5, ProjectionPath::kRowStable, /*gap=*/3);
    ExpectMatchesReference(matrix.weight, kGemmRows, ProjectionPath::kSequenceGemm, /*gap=*/3);
    const Matrix aligned(dtype, 21, 40, random);
    ExpectMatchesReference(aligned.weight, 5, ProjectionPath::kRowStable, /*gap=*/4);
    ExpectMatchesReference(aligned.weight, kGemmRows, ProjectionPath::kSequenceGemm, /*gap=*/4);
  }
}

TEST_P(ProjectionGpuTest, RowsAloneGiveTheBitsOfRowsInABatch) {
  Random random(3);
  for (int64_t cols : {80, 777}) {
    const Matrix matrix(DType::kBF16, 290, cols, random);
    const std::vector<float> x = random.Normal(19 * cols);
    std::vector<float> alone;
    for (int64_t row = 0; row < 19; ++row) {
      const std::vector<float> one(x.begin() + row * cols, x.begin() + (row + 1) * cols);
      Call call(matrix.weight, 1, ProjectionPath::kRowStable, one);
      ASSERT_TRUE(ProjectionGpu(call.params, stream()).ok());
      alone.insert(alone.end(), call.y.begin(), call.y.end());
    }
    for (int64_t rows : {2, 3, 4, 5, 8, 9, 19}) {
      Call batch(matrix.weight, rows, ProjectionPath::kRowStable, x);
      ASSERT_TRUE(ProjectionGpu(batch.params, stream()).ok());
      EXPECT_TRUE(BitEqual(batch.y, absl::MakeConstSpan(alone).first(batch.y.size()))) << rows << " rows";
    }
  }
}

// Neither the wave's width nor the weights' alignment nor how many processors there are has a part in a sum's order.
TEST_P(ProjectionGpuTest, BitsDoNotDependOnTheDevice) {
  Random random(4);
  const Matrix matrix(DType::kF16, 200, 264, random);
  const std::vector<float> x = random.Normal(6 * 264);
  Call here(matrix.weight, 6, ProjectionPath::kRowStable, x);
  ASSERT_TRUE(ProjectionGpu(here.params, stream()).ok());
  Call other_wave(matrix.weight, 6, ProjectionPath::kRowStable, x);
  ASSERT_TRUE(ProjectionGpu(other_wave.params, HostExecutor(96 - GetParam())).ok());
  EXPECT_TRUE(BitEqual(here.y, other_wave.y));
  Call many_processors(matrix.weight, 6, ProjectionPath::kRowStable, x);
  gpu::Stream large = stream();
  large.processors = 200;
  ASSERT_TRUE(ProjectionGpu(many_processors.params, large).ok());
  EXPECT_TRUE(BitEqual(here.y, many_processors.y));
  std::vector<char> moved(matrix.bytes.size() + 2);
  std::memcpy(moved.data() + 2, matrix.bytes.data(), matrix.bytes.size());
  WeightMatrix unaligned = matrix.weight;
  unaligned.data = moved.data() + 2;
  Call scalar(unaligned, 6, ProjectionPath::kRowStable, x);
  ASSERT_TRUE(ProjectionGpu(scalar.params, stream()).ok());
  EXPECT_TRUE(BitEqual(here.y, scalar.y));
}

TEST_P(ProjectionGpuTest, NarrowWeightsAreWidenedExactly) {
  Random random(5);
  for (ProjectionPath path : {ProjectionPath::kRowStable, ProjectionPath::kSequenceGemm}) {
    for (DType dtype : {DType::kBF16, DType::kF16}) {
      const Matrix narrow(dtype, 50, 104, random);
      std::vector<float> widened(50 * 104);
      ConvertToFloat(dtype, narrow.weight.data, widened.size(), widened.data());
      const WeightMatrix wide{.dtype = DType::kF32, .data = widened.data(), .rows = 50, .cols = 104};
      const std::vector<float> x = random.Normal(kGemmRows * 104);
      Call from_narrow(narrow.weight, kGemmRows, path, x), from_wide(wide, kGemmRows, path, x);
      ASSERT_TRUE(ProjectionGpu(from_narrow.params, stream()).ok());
      ASSERT_TRUE(ProjectionGpu(from_wide.params, stream()).ok());
      EXPECT_TRUE(BitEqual(from_narrow.y, from_wide.y)) << DTypeName(dtype);
    }
  }
}

TEST_P(ProjectionGpuTest, GemmMatchesReferenceForAnyShape) {
  Random random(6);
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (int64_t outputs : {1, 130}) {
      for (int64_t cols : {31, 72}) {
        const Matrix matrix(dtype, outputs, cols, random);
        for (int64_t rows : {40, 257}) ExpectMatchesReference(matrix.weight, rows, ProjectionPath::kSequenceGemm);
      }
    }
  }
  const Matrix deep(DType::kBF16, 8, 1024, random);
  ExpectMatchesReference(deep.weight, kGemmRows, ProjectionPath::kSequenceGemm);
}

TEST_P(ProjectionGpuTest, GemmRowsDoNotDependOnOtherRows) {
  Random random(7);
  const Matrix matrix(DType::kBF16, 70, 100, random);
  const std::vector<float> x = random.Normal(330 * 100);
  Call few(matrix.weight, kGemmRows + 4, ProjectionPath::kSequenceGemm, x),
      many(matrix.weight, 330, ProjectionPath::kSequenceGemm, x);
  ASSERT_TRUE(ProjectionGpu(few.params, stream()).ok());
  ASSERT_TRUE(ProjectionGpu(many.params, stream()).ok());
  EXPECT_TRUE(BitEqual(few.y, absl::MakeConstSpan(many.y).first(few.y.size())));
}

// Past a row's last feature lies the next row's first: it must not be read into a sum, not even times zero.
TEST_P(ProjectionGpuTest, NaNWeightsAndRowsStayTheirOwn) {
  Random random(10);
  for (ProjectionPath path : {ProjectionPath::kRowStable, ProjectionPath::kSequenceGemm}) {
    for (int64_t cols : {33, 40}) {
      const int64_t rows = kGemmRows, outputs = 5;
      std::vector<float> w = random.Normal(outputs * cols), x = random.Normal(rows * cols);
      const WeightMatrix weight{.dtype = DType::kF32, .data = w.data(), .rows = outputs, .cols = cols};
      Call clean(weight, rows, path, x);
      ASSERT_TRUE(ProjectionGpu(clean.params, stream()).ok());
      std::fill_n(w.begin() + 2 * cols, cols, NAN);
      std::fill_n(x.begin() + 7 * cols, cols, INFINITY);
      Call spoilt(weight, rows, path, x);
      ASSERT_TRUE(ProjectionGpu(spoilt.params, stream()).ok());
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t output = 0; output < outputs; ++output) {
          const float y = spoilt.y[row * outputs + output];
          if (row == 7 || output == 2) {
            EXPECT_FALSE(std::isfinite(y));
          } else {
            EXPECT_EQ(y, clean.y[row * outputs + output]) << row << ", " << output;
          }
        }
      }
    }
  }
}

TEST_P(ProjectionGpuTest, MatricesOfOneLaunchGiveTheBitsOfEachAlone) {
  Random random(8);
  for (ProjectionPath path : {ProjectionPath::kRowStable, ProjectionPath::kSequenceGemm}) {
    for (int64_t rows : {int64_t{3}, kGemmRows}) {
      const std::vector<float> x = random.Normal(rows * 48);
      const Matrix a(DType::kBF16, 150, 48, random), b(DType::kF32, 1, 48, random), c(DType::kF16, 0, 48, random),
          d(DType::kBF16, 33, 48, random);
      std::vector<Call> together, alone;
      std::vector<ProjectionParams> params;
      for (const Matrix* m : {&a, &b, &c, &d}) {
        together.emplace_back(m->weight, rows, path, x);
        alone.emplace_back(m->weight, rows, path, x);
        together.back().params.y = together.back().y.data();
        params.push_back(together.back().params);
        ASSERT_TRUE(ProjectionGpu(alone.back().params, stream()).ok());
      }
      const absl::Status status = ProjectionsGpu(params, stream());
      ASSERT_TRUE(status.ok()) << status;
      for (size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(BitEqual(together[i].y, alone[i].y)) << i;
    }
  }
}

TEST(ProjectionsGpu, RefusesMatricesThatDoNotShareTheirRows) {
  Random random(9);
  const Matrix matrix(DType::kF32, 4, 8, random);
  const std::vector<float> x(40);
  const Call call(matrix.weight, 2, ProjectionPath::kRowStable, x, /*gap=*/4);
  const auto refusal = [&](auto change) {
    std::vector<ProjectionParams> params(2, call.params);
    change(params[1]);
    const absl::Status status = ProjectionsGpu(params, HostExecutor(64));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](auto& p) { ++p.x; }), testing::HasSubstr("x of matrix 1"));
  EXPECT_THAT(refusal([](auto& p) { p.rows = 1; }), testing::HasSubstr("rows of matrix 1"));
  EXPECT_THAT(refusal([](auto& p) { p.x_stride = 9; }), testing::HasSubstr("x_stride"));
  EXPECT_THAT(refusal([](auto& p) { p.path = ProjectionPath::kSequenceGemm; }), testing::HasSubstr("path"));
  EXPECT_THAT(refusal([](auto& p) { p.weight.cols = 7; }), testing::HasSubstr("weight.cols"));
  EXPECT_THAT(refusal([](auto& p) { p.y = nullptr; }), testing::HasSubstr("y is null"));
  EXPECT_EQ(ProjectionsGpu({}, HostExecutor(64)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ProjectionsGpu(std::vector<ProjectionParams>(5, call.params), HostExecutor(64)).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gdn
