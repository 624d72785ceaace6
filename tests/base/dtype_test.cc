#include "base/dtype.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"

namespace gdn::dtype_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Half {
  const char* name;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
  int mantissa_bits;
  int bias;

  uint16_t infinity() const { return static_cast<uint16_t>(0x7fff >> mantissa_bits << mantissa_bits); }
  // The value that a bit pattern below infinity stands for, by the definition of the formats.
  double Value(uint16_t bits) const {
    const int exponent = (bits & 0x7fff) >> mantissa_bits;
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const int significand = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
    return ((bits & 0x8000) != 0 ? -1.0 : 1.0) * std::ldexp(significand, std::max(exponent, 1) - bias - mantissa_bits);
  }
};
constexpr Half kHalves[] = {{"F16", F16ToFloat, FloatToF16, /*mantissa_bits=*/10, /*bias=*/15},
                            {"BF16", BF16ToFloat, FloatToBF16, /*mantissa_bits=*/7, /*bias=*/127}};

TEST(DType, NamesSizesAndParsingAgree) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    GDN_ASSERT_OK_AND_ASSIGN(const auto parsed, ParseDType(DTypeName(dtype)));
    EXPECT_EQ(parsed, dtype);
  }
  EXPECT_EQ(DTypeSize(DType::kF32), 4u);
  EXPECT_EQ(DTypeSize(DType::kF16), 2u);
  EXPECT_EQ(DTypeSize(DType::kBF16), 2u);
  for (const char* name : {"", "f32", "F64", "I64", "F32 "}) {
    const auto parsed = ParseDType(name);
    ASSERT_FALSE(parsed.ok()) << name;
    ExpectError(parsed.status(), absl::StatusCode::kInvalidArgument, reason::kInvalidTensorDtype);
  }
}

TEST(DType, EveryHalfWidensExactlyAndRoundTrips) {
  for (const Half& half : kHalves) {
    SCOPED_TRACE(half.name);
    for (uint32_t i = 0; i <= 0xffff; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      const float value = half.widen(bits);
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
      if ((bits & 0x7fff) > half.infinity()) {
        ASSERT_TRUE(std::isnan(value)) << bits;
        ASSERT_TRUE(std::isnan(half.widen(half.narrow(value)))) << bits;
        ASSERT_EQ(half.narrow(value) & 0x8000, bits & 0x8000);
        continue;
      }
      const bool infinite = (bits & 0x7fff) == half.infinity();
      ASSERT_EQ(static_cast<double>(value), infinite ? std::copysign(kInf, value) : half.Value(bits)) << bits;
      ASSERT_EQ(half.narrow(value), bits);
    }
  }
  for (uint32_t i = 0; i <= 0xffff; ++i) {  // NaNs too
    ASSERT_EQ(std::bit_cast<uint32_t>(BF16ToFloat(static_cast<uint16_t>(i))), i << 16);
  }
}

// Between two neighbours below infinity: the midpoint goes to the even one, a hair to either side to the nearer one.
TEST(DType, HalvesRoundToNearestAndTiesToEvenBetweenAllNeighbours) {
  for (const Half& half : kHalves) {
    SCOPED_TRACE(half.name);
    for (uint16_t low = 0; low + 1 < half.infinity(); ++low) {
      const uint16_t high = low + 1;
      const double middle = (half.Value(low) + half.Value(high)) / 2;
      const float tie = static_cast<float>(middle);
      ASSERT_EQ(static_cast<double>(tie), middle);
      const uint16_t even = (low & 1) == 0 ? low : high;
      ASSERT_EQ(half.narrow(tie), even) << low;
      ASSERT_EQ(half.narrow(std::nextafter(tie, 0.0f)), low) << low;
      ASSERT_EQ(half.narrow(std::nextafter(tie, kInf)), high) << low;
      ASSERT_EQ(half.narrow(-tie), even | 0x8000) << low;
    }
  }
}

TEST(DType, OverflowBecomesInfinityAtTheHalfwayPoint) {
  EXPECT_EQ(FloatToF16(65504.0f), 0x7bff);
  EXPECT_EQ(FloatToF16(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(FloatToF16(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToF16(-1e30f), 0xfc00);
  EXPECT_EQ(FloatToF16(kInf), 0x7c00);
  EXPECT_EQ(FloatToBF16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(FloatToBF16(-kInf), 0xff80);
}

TEST(DType, TinyValuesBecomeSignedZero) {
  EXPECT_EQ(FloatToF16(std::ldexp(1.0f, -25)), 0x0000);  // a tie with zero, which is even
  EXPECT_EQ(FloatToF16(std::nextafter(std::ldexp(1.0f, -25), 1.0f)), 0x0001);
  EXPECT_EQ(FloatToF16(-std::numeric_limits<float>::denorm_min()), 0x8000);
  EXPECT_EQ(FloatToF16(-0.0f), 0x8000);
  EXPECT_EQ(FloatToBF16(-std::numeric_limits<float>::denorm_min()), 0x8000);
}

TEST(DType, NaNStaysNaNWhateverItsPayload) {
  for (const uint32_t bits : {0x7f800001u, 0x7fbfffffu, 0x7fffffffu, 0xff800001u, 0x7fc00000u}) {
    const float nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(BF16ToFloat(FloatToBF16(nan)))) << bits;
    EXPECT_TRUE(std::isnan(F16ToFloat(FloatToF16(nan)))) << bits;
  }
}

TEST(DType, ConvertsArraysAsSingleElements) {
  std::vector<uint16_t> halves(0x10000);
  std::iota(halves.begin(), halves.end(), uint16_t{0});
  std::vector<float> wide(halves.size());
  for (const auto& [dtype, widen] : {std::pair(DType::kBF16, &BF16ToFloat), std::pair(DType::kF16, &F16ToFloat)}) {
    ConvertToFloat(dtype, halves.data(), halves.size(), wide.data());
    for (size_t i = 0; i < halves.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(widen(halves[i]))) << DTypeName(dtype) << i;
    }
  }
  std::vector<float> values;
  for (uint64_t bits = 0; bits <= 0xffffffff; bits += 0x7f3b) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (const uint32_t bits : {0x7f800000u, 0x7f800001u, 0x7fffffffu, 0xff800000u, 0x3f808000u, 0x3f818000u}) {
    values.push_back(std::bit_cast<float>(bits));
  }
  std::vector<uint16_t> narrow(values.size());
  for (const auto& [dtype, to] : {std::pair(DType::kBF16, &FloatToBF16), std::pair(DType::kF16, &FloatToF16)}) {
    ConvertFromFloat(values.data(), values.size(), dtype, narrow.data());
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(narrow[i], to(values[i])) << DTypeName(dtype) << values[i];
  }
}

TEST(DType, FindsTheOneElementThatIsNotFinite) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    std::vector<char> data(1 + 200 * DTypeSize(dtype));
    const std::vector<float> finite(200, -1.5f);
    ConvertFromFloat(finite.data(), finite.size(), dtype, data.data() + 1);
    EXPECT_FALSE(AnyNonFinite(dtype, data.data() + 1, finite.size()));
    EXPECT_FALSE(AnyNonFinite(dtype, nullptr, 0));
    for (size_t i = 0; i < finite.size(); ++i) {
      for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<char> one = data;
        ConvertFromFloat(&bad, 1, dtype, one.data() + 1 + i * DTypeSize(dtype));
        EXPECT_TRUE(AnyNonFinite(dtype, one.data() + 1, finite.size())) << DTypeName(dtype) << i;
      }
    }
  }
}

TEST(DType, ConvertsArraysAtAnyAlignment) {
  const std::vector<float> values = {0.0f, -0.0f, 1.0f, -2.5f, 65504.0f, 6.103515625e-05f, 5.9604645e-08f, kInf, 0.1f};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (size_t offset = 0; offset < 4; ++offset) {
      std::vector<char> bytes(offset + values.size() * DTypeSize(dtype) + 1, 'x');
      ConvertFromFloat(values.data(), values.size(), dtype, bytes.data() + offset);
      EXPECT_EQ(bytes.back(), 'x');
      std::vector<float> back(values.size());
      ConvertToFloat(dtype, bytes.data() + offset, back.size(), back.data());
      for (size_t i = 0; i < values.size(); ++i) {
        float expected = values[i];
        if (dtype == DType::kF16) expected = F16ToFloat(FloatToF16(expected));
        if (dtype == DType::kBF16) expected = BF16ToFloat(FloatToBF16(expected));
        EXPECT_EQ(std::bit_cast<uint32_t>(back[i]), std::bit_cast<uint32_t>(expected)) << DTypeName(dtype) << " " << i;
      }
    }
  }
  ConvertToFloat(DType::kF32, nullptr, 0, nullptr);
  ConvertFromFloat(nullptr, 0, DType::kF32, nullptr);
}

}  // namespace
}  // namespace gdn::dtype_test
