#include "client/cpp/tensor_codec.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"

namespace gdn::tensor_codec_test {
namespace {

using ::testing::ElementsAre;

constexpr float kExact[] = {0.0f, 1.0f, -2.5f, 0.375f, 1024.0f, -0.0078125f};  // exact in all three dtypes

TEST(TensorCodec, RoundTripsExactValuesInEveryDType) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    GDN_ASSERT_OK_AND_ASSIGN(const auto tensor, MakeTensor(kExact, {2, 3}, dtype));
    EXPECT_EQ(tensor.dtype(), ToProtoDType(dtype));
    EXPECT_THAT(tensor.shape(), ElementsAre(2, 3));
    EXPECT_EQ(tensor.data().size(), 6 * DTypeSize(dtype));
    GDN_ASSERT_OK_AND_ASSIGN(const auto values, TensorToFloats(tensor, {{2, 3}}));
    EXPECT_EQ(values, std::vector<float>(std::begin(kExact), std::end(kExact)));
  }
}

TEST(TensorCodec, WritesLittleEndianBytes) {
  EXPECT_EQ(MakeTensor({1.0f}, {1})->data(), std::string("\x00\x00\x80\x3f", 4));
  EXPECT_EQ(MakeTensor({1.0f}, {1}, DType::kF16)->data(), std::string("\x00\x3c", 2));
  EXPECT_EQ(MakeTensor({1.0f}, {1}, DType::kBF16)->data(), std::string("\x80\x3f", 2));
}

TEST(TensorCodec, RoundsToTheNarrowerDType) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto values,
                           TensorToFloats(*MakeTensor({1.0f + 1.0f / 1024, 0.1f}, {2}, DType::kBF16)));
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_NEAR(values[1], 0.1f, 0.1f / 256);
  EXPECT_NE(values[1], 0.1f);
}

TEST(TensorCodec, KeepsNonFiniteValues) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    GDN_ASSERT_OK_AND_ASSIGN(const auto values, TensorToFloats(*MakeTensor({inf, -inf, std::nanf("")}, {3}, dtype)));
    EXPECT_EQ(values[0], inf);
    EXPECT_EQ(values[1], -inf);
    EXPECT_TRUE(std::isnan(values[2]));
  }
}

TEST(TensorCodec, TakesAnEmptyTensor) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto tensor, MakeTensor({}, {0, 64}));
  EXPECT_THAT(TensorToFloats(tensor, {{0, 64}})->size(), 0);
}

TEST(TensorCodec, RefusesValuesThatAreNotTheShapes) {
  const absl::Status status = MakeTensor(kExact, {2, 4}).status();
  ExpectError(status, absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData);
  EXPECT_EQ(ErrorMetadata(status)["found"], "24");
  EXPECT_EQ(ErrorMetadata(status)["expected"], "32");
  EXPECT_EQ(ErrorReason(MakeTensor({}, {-1}).status()), reason::kInvalidTensorShape);
  EXPECT_EQ(ErrorReason(MakeTensor({}, {INT64_MAX, 4}).status()), reason::kShapeOverflow);
}

TEST(TensorCodec, RefusesATensorWhoseBytesAreNotItsShapes) {
  v1::Tensor tensor = *MakeTensor(kExact, {6});
  tensor.mutable_data()->pop_back();
  EXPECT_EQ(ErrorReason(TensorToFloats(tensor).status()), reason::kInvalidTensorData);
  EXPECT_EQ(ErrorReason(ViewTensor(tensor).status()), reason::kInvalidTensorData);
}

TEST(TensorCodec, RefusesAnUnknownDType) {
  v1::Tensor tensor = *MakeTensor(kExact, {6});
  for (const int dtype : {0, 4, 99}) {
    tensor.set_dtype(static_cast<v1::DType>(dtype));
    EXPECT_EQ(ErrorReason(TensorToFloats(tensor).status()), reason::kInvalidTensorDtype) << dtype;
  }
}

TEST(TensorCodec, RefusesAShapeOtherThanTheExpected) {
  const v1::Tensor tensor = *MakeTensor(kExact, {2, 3});
  EXPECT_EQ(ErrorReason(TensorToFloats(tensor, {{3, 2}}).status()), reason::kInvalidTensorShape);
  EXPECT_EQ(ErrorReason(TensorToFloats(tensor, {{6}}).status()), reason::kInvalidTensorShape);
}

TEST(TensorCodec, CopiesAViewInItsOwnDType) {
  const std::string bytes("\x00\x3c\x00\xc0", 4);
  GDN_ASSERT_OK_AND_ASSIGN(const auto tensor, MakeTensor(TensorView{DType::kF16, {1, 2}, bytes}));
  EXPECT_EQ(tensor.dtype(), v1::DTYPE_F16);
  EXPECT_EQ(tensor.data(), bytes);
  EXPECT_THAT(*TensorToFloats(tensor), ElementsAre(1.0f, -2.0f));
}

}  // namespace
}  // namespace gdn::tensor_codec_test
