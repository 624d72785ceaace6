#include "server/checkpoint/stored_tensor.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"

namespace gdn::stored_tensor_test {
namespace {

// By the format's definition, apart from the table.
float E4M3(int bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  const double magnitude =
      exponent == 0 ? mantissa / 8.0 * std::pow(2.0, -6) : (1.0 + mantissa / 8.0) * std::pow(2.0, exponent - 7);
  return static_cast<float>(bits < 128 ? magnitude : -magnitude);
}

TEST(E4M3, EveryCodeHasItsValue) {
  for (int bits = 0; bits < 256; ++bits) {
    const float value = E4M3ToFloat(static_cast<uint8_t>(bits));
    if ((bits & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      EXPECT_EQ(value, E4M3(bits)) << bits;
      EXPECT_EQ(std::signbit(value), bits >= 128) << bits;
    }
  }
  EXPECT_EQ(E4M3ToFloat(0x7e), 448.0f);
  EXPECT_EQ(E4M3ToFloat(0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(E4M3ToFloat(0x38), 1.0f);
}

TEST(StoredTensor, AnFp8WeightIsMultipliedByItsBlocksScale) {
  // Two and a half blocks of columns, one and a bit of rows.
  const std::vector<int64_t> shape = {130, 320};
  EXPECT_THAT(Fp8BlocksOf(shape), testing::ElementsAre(2, 3));
  std::string codes;
  for (int64_t i = 0; i < shape[0] * shape[1]; ++i) codes.push_back(static_cast<char>(i % 127));
  const std::vector<float> scales = {0.5f, 3.0f, 0.001f, 7.0f, 1.0f, 1e-4f};
  const std::string_view scale_bytes(reinterpret_cast<const char*>(scales.data()), scales.size() * sizeof(float));
  const StoredTensor tensor{.encoding = WeightFormat::kF8E4M3,
                            .shape = shape,
                            .data = codes,
                            .scales = {.dtype = DType::kF32, .shape = {2, 3}, .data = scale_bytes}};
  std::vector<float> values(static_cast<size_t>(tensor.ElementCount()));
  DecodeTensor(tensor, values.data());
  for (int64_t i = 0; i < shape[0]; ++i) {
    for (int64_t j = 0; j < shape[1]; ++j) {
      const auto at = static_cast<size_t>(i * shape[1] + j);
      ASSERT_EQ(values[at], E4M3(codes[at]) * scales[static_cast<size_t>(i / 128 * 3 + j / 128)]) << i << ", " << j;
    }
  }
}

TEST(StoredTensor, AFactorThatIsNoNumberIsRefused) {
  struct Case {
    WeightFormat format;
    std::vector<size_t> factors_at;
  };
  for (const Case& c :
       {Case{WeightFormat::kQ8_0, {0}}, Case{WeightFormat::kQ4_0, {0}}, Case{WeightFormat::kQ4_K, {0, 2}},
        Case{WeightFormat::kQ5_K, {0, 2}}, Case{WeightFormat::kQ6_K, {208}}, Case{WeightFormat::kQ4_1, {0, 2}},
        Case{WeightFormat::kQ5_0, {0}}, Case{WeightFormat::kQ5_1, {0, 2}}, Case{WeightFormat::kIQ4_NL, {0}},
        Case{WeightFormat::kQ2_K, {80, 82}}, Case{WeightFormat::kQ3_K, {108}}, Case{WeightFormat::kIQ4_XS, {0}},
        Case{WeightFormat::kIQ3_S, {0}}}) {
    const WeightBlock block = BlockOf(c.format);
    std::string bytes(static_cast<size_t>(6 * block.bytes), '\xff');  // of factors that are none, but for:
    for (size_t i = 0; i < 6; ++i) {
      for (const size_t at : c.factors_at) bytes.replace(i * static_cast<size_t>(block.bytes) + at, 2, 2, '\x3b');
    }
    StoredTensor tensor{.encoding = c.format, .shape = {2, 3 * block.weights}, .data = bytes};
    EXPECT_EQ(CheckFinite(tensor), absl::OkStatus()) << WeightFormatName(c.format);
    for (const char* bad : {"\x00\x7c", "\x00\xfc", "\x01\x7e"}) {
      for (const size_t at : c.factors_at) {
        std::string spoilt = bytes;
        spoilt.replace(4 * static_cast<size_t>(block.bytes) + at, 2, bad, 2);
        tensor.data = spoilt;
        const absl::Status refused = CheckFinite(tensor);
        ExpectError(refused, absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData);
        EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("block 4"));
      }
    }
  }
  const std::string codes(4 * 200, '\x38');
  std::vector<float> scales = {1.0f, 2.0f};
  const std::string_view scale_bytes(reinterpret_cast<const char*>(scales.data()), scales.size() * sizeof(float));
  const StoredTensor fp8{.encoding = WeightFormat::kF8E4M3,
                         .shape = {4, 200},
                         .data = codes,
                         .scales = {.dtype = DType::kF32, .shape = {1, 2}, .data = scale_bytes}};
  EXPECT_EQ(CheckFinite(fp8), absl::OkStatus());
  scales[1] = INFINITY;
  ExpectError(CheckFinite(fp8), absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData);
}

// Every place of a word of eight bytes, and the elements behind the last word.
TEST(StoredTensor, AWeightThatIsNotFiniteIsRefusedWithItsIndex) {
  constexpr int64_t kRows = 3, kCols = 7;
  struct Bad {
    float value;
    const char* name;
  };
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    std::vector<float> values(kRows * kCols, -1.5f);
    values[3] = 0.0f;
    values[4] = 1e-40f;  // subnormal, or 0
    std::string data(values.size() * DTypeSize(dtype), '\0');
    const auto check = [&](MinusInfinity minus_infinity = MinusInfinity::kRefused) {
      ConvertFromFloat(values.data(), values.size(), dtype, data.data());
      return CheckFinite(PlainTensor({.dtype = dtype, .shape = {kRows, kCols}, .data = data}), minus_infinity);
    };
    EXPECT_EQ(check(), absl::OkStatus());
    for (const Bad& bad : {Bad{NAN, "no number"}, Bad{INFINITY, "infinity"}, Bad{-INFINITY, "-infinity"}}) {
      for (size_t i = 0; i < values.size(); ++i) {
        const float before = std::exchange(values[i], bad.value);
        const absl::Status refused = check();
        ExpectError(refused, absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData);
        EXPECT_THAT(std::string(refused.message()),
                    testing::HasSubstr(absl::StrCat("element [", i / kCols, ", ", i % kCols, "] is ", bad.name, ";")));
        EXPECT_EQ(check(MinusInfinity::kTaken).ok(), bad.value < 0.0f) << bad.name;
        values[i] = before;
      }
    }
  }
}

TEST(StoredTensor, ACodeOfE4M3ThatIsNoNumberIsRefusedWithItsIndex) {
  const std::vector<float> scales = {1.0f, 2.0f};
  const std::string_view scale_bytes(reinterpret_cast<const char*>(scales.data()), scales.size() * sizeof(float));
  std::string codes(4 * 201, '\x7e');  // the greatest
  const auto check = [&] {
    return CheckFinite({.encoding = WeightFormat::kF8E4M3,
                        .shape = {4, 201},
                        .data = codes,
                        .scales = {.dtype = DType::kF32, .shape = {1, 2}, .data = scale_bytes}});
  };
  EXPECT_EQ(check(), absl::OkStatus());
  for (const char code : {'\x7f', '\xff'}) {
    for (const size_t i : {0, 5, 201, 803}) {
      const char before = std::exchange(codes[i], code);
      const absl::Status refused = check();
      ExpectError(refused, absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData);
      EXPECT_THAT(std::string(refused.message()),
                  testing::HasSubstr(absl::StrCat("element [", i / 201, ", ", i % 201, "] is no number")));
      codes[i] = before;
    }
  }
}

TEST(StoredTensor, PlainTensorsKeepTheirDtype) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::vector<float> values = {1.5f, -2.0f, 0.25f};
    std::string data(values.size() * DTypeSize(dtype), '\0');
    ConvertFromFloat(values.data(), values.size(), dtype, data.data());
    const StoredTensor tensor = PlainTensor({.dtype = dtype, .shape = {3}, .data = data});
    EXPECT_TRUE(IsPlain(tensor.encoding));
    EXPECT_EQ(WidenedDType(tensor.encoding), dtype);
    EXPECT_EQ(WeightFormatName(tensor.encoding), DTypeName(dtype));
    std::vector<float> decoded(values.size());
    DecodeTensor(tensor, decoded.data());
    EXPECT_EQ(decoded, values);
  }
}

}  // namespace
}  // namespace gdn::stored_tensor_test
