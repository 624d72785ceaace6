#include "base/product_math.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/dtype.h"

namespace gdn {

std::string_view ProductMathName(ProductMath math) {
  return math == ProductMath::kInt8 ? "int8" : math == ProductMath::kHalf ? "half" : "exact";
}

std::optional<ProductMath> ParseProductMath(std::string_view text) {
  for (const ProductMath math : {ProductMath::kExact, ProductMath::kHalf, ProductMath::kInt8}) {
    if (text == ProductMathName(math)) return math;
  }
  return std::nullopt;
}

std::string_view NumericsSuffixOf(ProductMath math) {
  return math == ProductMath::kInt8 ? "-int8" : math == ProductMath::kHalf ? "-half" : "";
}

HalfScale HalfScaleOf(uint32_t largest_bits) {
  constexpr uint32_t kLargest = 127 + 14;  // biased exponent of what the largest magnitude becomes
  const uint32_t exponent = std::max(largest_bits >> 23, kHalfSmallest);
  return {std::bit_cast<float>((kLargest + 127 - exponent) << 23),
          std::bit_cast<float>((exponent + 127 - kLargest) << 23)};
}

HalfScale HalfScaleOf(const float* values, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (std::isfinite(values[i])) largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7fffffffu);
  }
  return HalfScaleOf(largest);
}

bool AreScaledHalves(const float* values, int64_t count) {
  constexpr uint32_t kLostBits = (1u << 13) - 1;  // of float32's significand, in fp16
  constexpr uint32_t kNone = ~0u;
  uint32_t any = 0, largest = 0, below_smallest = kNone;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]) & 0x7fffffffu;
    any |= bits;
    largest = std::max(largest, bits);
    below_smallest = std::min(below_smallest, bits - 1);  // a zero becomes kNone
  }
  if ((any & kLostBits) != 0 || largest >= 0x7f800000u) return false;
  return below_smallest == kNone || (below_smallest + 1) >> 23 >= std::max(largest >> 23, kHalfSmallest) - 28;
}

float RoundToHalf(float value, const HalfScale& scale) {
  return F16ToFloat(FloatToF16(value * scale.scale)) * scale.inverse;
}

Int8Scale Int8ScaleOf(uint32_t largest_bits) {
  const auto largest = std::bit_cast<float>(largest_bits);
  if (!std::isfinite(largest)) return {std::numeric_limits<float>::quiet_NaN(), 0.0f};
  if (largest < kInt8Smallest) return {0.0f, 0.0f};
  return {largest * (1.0f / kInt8Largest), kInt8Largest / largest};
}

float RoundToInt8(const float* x, int8_t* q) {
  uint32_t largest = 0;
  for (int i = 0; i < kInt8Block; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  const Int8Scale block = Int8ScaleOf(largest);
  for (int i = 0; i < kInt8Block; ++i) {
    // Not a product with NaN or an infinity, which no integer stands for.
    q[i] = block.inverse == 0.0f ? int8_t{0} : static_cast<int8_t>(std::nearbyint(x[i] * block.inverse));
  }
  return block.scale;
}

}  // namespace gdn
