// Variants of Dot2 (device.h), which adds the products of two pairs of fp16 numbers to a float32.
//
// No public text says how gfx906's v_dot2_f32_f16 rounds, and what it does with subnormal numbers. So a device is asked
// at startup (dot2_probe.h), and its answers are compared with the variants of this file. The products of two fp16
// numbers are exact in float32. A variant says how often their sum is rounded, to nearest even, and which subnormal
// numbers count as zero.
// Thread safety: pure functions.
//
//   const float sum = Dot2As({Dot2Rounding::kLowFirst}, a, b, c);  // c + a.low * b.low + a.high * b.high
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

namespace gdn::gpu {

enum class Dot2Rounding : uint8_t {
  kLowFirst,   // (c + low product) rounded, then + high product rounded
  kHighFirst,  // the same with the products exchanged
  kPairFirst,  // the products' sum rounded, then + c rounded
  kOnce,       // the exact sum of all three rounded
};

struct Dot2Variant {
  Dot2Rounding rounding = Dot2Rounding::kLowFirst;
  bool flushes_floats = false;  // subnormal float32 operands and sums become zero, with their sign
  bool flushes_halves = false;  // subnormal fp16 operands become zero

  friend bool operator==(const Dot2Variant& a, const Dot2Variant& b) {
    return a.rounding == b.rounding && a.flushes_floats == b.flushes_floats && a.flushes_halves == b.flushes_halves;
  }
};

inline constexpr int kDot2Variants = 16;
constexpr Dot2Variant Dot2VariantOf(int number) {
  return {static_cast<Dot2Rounding>(number / 4), number % 2 != 0, number / 2 % 2 != 0};
}

// Returns "dot2low", "dot2high", "dot2pair" or "dot2once", with "f" or "h" at the end for what it flushes.
inline std::string Dot2VariantName(const Dot2Variant& variant) {
  constexpr const char* kNames[] = {"dot2low", "dot2high", "dot2pair", "dot2once"};
  std::string name = kNames[static_cast<int>(variant.rounding)];
  if (variant.flushes_floats) name += 'f';
  if (variant.flushes_halves) name += 'h';
  return name;
}

namespace dot2 {

inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline float Widened(uint32_t half) {
  const uint32_t magnitude = (half & 0x7fffu) << 13;
  const float value = magnitude < 0x0f800000u ? FloatOf(magnitude) * 0x1p112f : FloatOf(magnitude | 0x7f800000u);
  return (half & 0x8000u) != 0 ? -value : value;
}

// Returns the sum rounded to odd: if it is inexact, the neighbour with an odd last bit. A later rounding to fewer bits
// is then that of the exact sum.
inline double SumToOdd(double a, double b) {
  const double sum = a + b;
  if (!std::isfinite(sum)) return sum;
  const double of_b = sum - a;
  const double error = (a - (sum - of_b)) + (b - of_b);
  uint64_t bits;
  std::memcpy(&bits, &sum, sizeof(bits));
  if (error == 0.0 || (bits & 1) != 0) return sum;
  return std::nextafter(sum, error > 0.0 ? INFINITY : -INFINITY);
}

// Returns a + b + c rounded once to float32. The absolute values are 0 or from 2^-149 up to 2^128.
inline float SumOnce(double a, double b, double c) {
  const double rough = a + b + c;
  if (!std::isfinite(rough)) return static_cast<float>(rough);
  const double pair = a + b;
  const double pair_b = pair - a;
  const double pair_error = (a - (pair - pair_b)) + (b - pair_b);
  const double sum = pair + c;
  const double sum_c = sum - pair;
  const double sum_error = (pair - (sum - sum_c)) + (c - sum_c);
  return static_cast<float>(SumToOdd(sum, SumToOdd(pair_error, sum_error)));
}

inline float Flushed(float value) { return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value; }

}  // namespace dot2

// Returns c plus the products of the low and of the high halves of a and b, fp16 each, as the variant computes it.
[[gnu::always_inline]] inline float Dot2As(const Dot2Variant& variant, uint32_t a, uint32_t b, float c) {
  const auto half = [&](uint32_t bits) {
    const bool flushed = variant.flushes_halves && (bits & 0x7c00u) == 0;
    return dot2::Widened(flushed ? bits & 0x8000u : bits & 0xffffu);
  };
  const auto flushed = [&](float value) { return variant.flushes_floats ? dot2::Flushed(value) : value; };
  // Exact, so that a float32 addition is the rounded sum.
  const float low = half(a) * half(b);
  const float high = half(a >> 16) * half(b >> 16);
  const float start = flushed(c);
  switch (variant.rounding) {
    case Dot2Rounding::kLowFirst:
      return flushed(high + flushed(low + start));
    case Dot2Rounding::kHighFirst:
      return flushed(low + flushed(high + start));
    case Dot2Rounding::kPairFirst:
      return flushed(flushed(low + high) + start);
    default:
      return flushed(dot2::SumOnce(low, high, start));
  }
}

}  // namespace gdn::gpu
