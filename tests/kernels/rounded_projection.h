// Checks of projections with rounded operands. `RoundedProblem` is a Problem of int8 inputs, or of fp16 numbers.
//
// Thread safety: none.
//
//   ExpectReferenceOnEveryPath<Int8Problem>(backend(), Taken(), /*features=*/768, /*large=*/on_cpu());
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kernels/projection/projection.h"
#include "tests/kernels/quantized_problem.h"
#include "tests/support/compare.h"

namespace gdn {

// `large`: also problems of more than 131 x 33 outputs.
template <typename RoundedProblem>
void ExpectReferenceOnEveryPath(Backend& backend, absl::Span<const WeightFormat> formats, int64_t features,
                                bool large) {
  for (const WeightFormat format : formats) {
    for (const int64_t outputs : {1, 3, 16, 67, 131}) {
      for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 33, 130}) {
        if (rows * outputs > 131 * 33 && !large) continue;
        RoundedProblem problem(format, rows, outputs, features);
        for (const ProjectionPath path : kPaths) {
          problem.params.path = path;
          ASSERT_LE(RelativeNormError(Project(problem.params, backend), Expected(problem.params)), kTolerance)
              << WeightFormatName(format) << ", " << rows << " rows, " << outputs << " outputs";
        }
      }
    }
  }
}

// Rows 5 and on of a call have their bits in calls of fewer rows too, on each path and on each of the `others`.
template <typename RoundedProblem, typename Backends>
void ExpectTheSameBitsAmongAnyRows(Backend& backend, const Backends& others, absl::Span<const WeightFormat> formats,
                                   int64_t rows, int64_t features) {
  for (const WeightFormat format : formats) {
    RoundedProblem problem(format, rows, /*outputs=*/131, features);
    const std::vector<float> all = Project(problem.params, backend);
    for (const int64_t count :
         {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{4}, int64_t{5}, int64_t{8}, int64_t{9}, int64_t{17}, rows - 5}) {
      for (const ProjectionPath path : kPaths) {
        ProjectionParams part = problem.params;
        part.path = path;
        part.rows = count;
        part.x = part.x.From(5 * part.x_stride);
        const auto expected = absl::MakeConstSpan(all).subspan(5 * part.y_stride, count * part.y_stride);
        EXPECT_TRUE(BitEqual(Project(part, *others[count % others.size()]), expected))
            << WeightFormatName(format) << ", " << count << " rows";
      }
    }
  }
}

// Inputs and outputs of BF16 and F16 are those of float32, the outputs rounded.
template <typename RoundedProblem>
void ExpectEveryDtype(Backend& backend, absl::Span<const WeightFormat> formats) {
  for (const WeightFormat format : formats) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int64_t rows : {1, 7, 20}) {
        RoundedProblem problem(format, rows, /*outputs=*/45, /*features=*/256);
        std::vector<uint16_t> x(problem.x.size()), y(static_cast<size_t>(rows * problem.params.y_stride)), expected = y;
        ConvertFromFloat(problem.x.data(), x.size(), dtype, x.data());
        ProjectionParams narrow = problem.params;
        narrow.x = {x.data(), dtype};
        narrow.y = {y.data(), dtype};
        ASSERT_EQ(ProjectPacked(narrow, backend), absl::OkStatus());
        ConvertToFloat(dtype, x.data(), x.size(), problem.x.data());
        const std::vector<float> wide = Project(problem.params, backend);
        ConvertFromFloat(wide.data(), wide.size(), dtype, expected.data());
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t output = 0; output < 45; ++output) {
            const int64_t i = row * problem.params.y_stride + output;
            ASSERT_EQ(y[i], expected[i]) << WeightFormatName(format) << " " << row << ", " << output;
          }
        }
      }
    }
  }
}

}  // namespace gdn
