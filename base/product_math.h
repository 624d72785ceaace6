// How projections multiply: exactly, with both operands rounded to fp16, or with inputs rounded to int8 as llama.cpp
// rounds them.
//
// kExact multiplies float32 numbers. A GPU that multiplies pairs of fp16 numbers does so with BF16 and F16 inputs, if
// all weights of a plain matrix are fp16 numbers times a power of two for each row (AreScaledHalves), and with the
// integers of formats that HasHalfProducts. x is scaled as for kHalf. So products are exact, except that an element of
// x may be rounded or count as zero if it is below 2^-28 of its group's largest magnitude, or below 2^-116.
// kHalf changes products with these two kinds of weights only, on GPUs that multiply pairs of fp16 numbers. Plain
// weights are rounded to fp16 times a power of two for each row; integers stay. A row of x is cut into groups of 64
// features, and a group is rounded to fp16 times a power of two. The scales bring the largest finite magnitude to 2^14
// up to 2^15, or 2^-88 if it is smaller. So what is at least 2^-28 of it keeps 11 bits. Products are exact, and sums
// are float32.
// kInt8 changes products with integer weights (HasIntegerWeights) only. A row of x is cut into blocks of 32 features. A
// block becomes whole numbers q within +-127 and a scale, max |x| / 127. Products of q and the weights' integers are
// exact, and so are their sums over a block; sums of blocks are float32. So the result is that of exact products with
// the rounded x. A block's error is at most half its scale for each feature.
// Thread safety: pure functions. Ownership: none.
//
//   int8_t q[kInt8Block];
//   const float scale = RoundToInt8(x, q);  // x[i] is about scale * q[i]
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/weight_format.h"

namespace gdn {

enum class ProductMath : uint8_t { kExact, kInt8, kHalf };

// Returns "exact", "half" or "int8". ParseProductMath takes these texts; nullopt for others.
std::string_view ProductMathName(ProductMath math);
std::optional<ProductMath> ParseProductMath(std::string_view text);
// Returns what the math adds to a backend's numerics_id: nothing for kExact, else "-half" or "-int8".
std::string_view NumericsSuffixOf(ProductMath math);

// True for formats whose weights are factors times small integers: GGUF's.
constexpr bool HasIntegerWeights(WeightFormat format) { return !IsPlain(format) && format != WeightFormat::kF8E4M3; }
// True if x is rounded to int8 for products with weights of this format.
constexpr bool TakesInt8Inputs(ProductMath math, WeightFormat format) {
  return math == ProductMath::kInt8 && HasIntegerWeights(format);
}

inline constexpr int kHalfGroup = 64;  // features of x that share a scale
inline constexpr int kHalfBlock = 32;  // neighbouring integer weights that share one
// True for formats with integer weights that a GPU may multiply as fp16 numbers.
constexpr bool HasHalfProducts(WeightFormat format) {
  return format == WeightFormat::kQ8_0 || format == WeightFormat::kQ4_K;
}
// Biased exponent of 2^-88. A scale of smaller magnitudes, or the factor of their sums, would leave float32's range.
inline constexpr uint32_t kHalfSmallest = 127 - 88;

// A power of two and its inverse. Kernels use this formula too, so all backends round alike. `largest_bits`: the
// largest of the elements' bits without their signs, of finite elements only.
struct HalfScale {
  float scale;
  float inverse;
};
HalfScale HalfScaleOf(uint32_t largest_bits);
// Returns the scale of `count` elements, and an element as it enters a product: rounded to fp16 times the scale.
HalfScale HalfScaleOf(const float* values, int64_t count);
float RoundToHalf(float value, const HalfScale& scale);
// True if each of `count` elements, times the scale of all, is zero or a normal fp16 number. Then no device rounds or
// flushes one. False if an element is an infinity or a NaN.
bool AreScaledHalves(const float* values, int64_t count);

inline constexpr int kInt8Block = 32;  // features; divides every such format's block
inline constexpr float kInt8Largest = 127.0f;
// A block without a larger magnitude counts as zero: its scale's inverse would overflow.
inline constexpr float kInt8Smallest = 0x1p-100f;

// The scale of a block and what its elements are multiplied by before they are rounded to nearest even. Kernels use
// these formulas too, so all backends round x alike. `largest_bits`: the largest of the elements' bits without their
// signs. A block with an infinity or a NaN gets the scale NaN and zeros.
struct Int8Scale {
  float scale;
  float inverse;
};
Int8Scale Int8ScaleOf(uint32_t largest_bits);

// Rounds kInt8Block floats to `q` and returns their scale.
float RoundToInt8(const float* x, int8_t* q);

}  // namespace gdn
