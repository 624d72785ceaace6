#include "base/tensor_view.h"

#include <limits>

#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"

namespace gdn::tensor_view_test {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(TensorView, CountsElements) {
  EXPECT_EQ((TensorView{DType::kF32, {2, 3, 4}, ""}).ElementCount(), 24);
  EXPECT_EQ((TensorView{DType::kF32, {}, ""}).ElementCount(), 1);
  EXPECT_EQ(*CheckedElementCount({2, 37, 64}), 2 * 37 * 64);
  EXPECT_EQ(*CheckedElementCount({}), 1);
  EXPECT_EQ(*CheckedElementCount({5, 0, 7}), 0);
  EXPECT_EQ(*CheckedElementCount({kMax / 8}), kMax / 8);
}

TEST(TensorView, RefusesNegativeDimensions) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{-1}, {2, -3}, {0, -1}, {4, -kMax - 1}}) {
    const auto count = CheckedElementCount(shape);
    ASSERT_FALSE(count.ok()) << ShapeToString(shape);
    EXPECT_EQ(ErrorReason(count.status()), reason::kInvalidTensorShape);
  }
}

TEST(TensorView, RefusesOverflow) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{kMax},
                                            {kMax / 8 + 1},
                                            {int64_t{1} << 32, int64_t{1} << 32},
                                            {kMax, kMax, kMax},
                                            {int64_t{1} << 60, 2},
                                            {0, kMax, kMax}}) {
    const auto count = CheckedElementCount(shape);
    ASSERT_FALSE(count.ok()) << ShapeToString(shape);
    ExpectError(count.status(), absl::StatusCode::kInvalidArgument, reason::kShapeOverflow);
  }
}

TEST(TensorView, PrintsShapes) {
  EXPECT_EQ(ShapeToString({2, 37, 64}), "[2, 37, 64]");
  EXPECT_EQ(ShapeToString({}), "[]");
}

}  // namespace
}  // namespace gdn::tensor_view_test
