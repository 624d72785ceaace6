#include "base/dtype.h"

#include <bit>

#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor bytes are little-endian and are read as they lie");

constexpr uint32_t kF32AbsMask = 0x7fffffff;
constexpr uint32_t kF32Inf = 0x7f800000;
constexpr uint32_t kF32MantissaMask = 0x007fffff;

// Moves an exponent between the biases of float32 (127) and float16 (15).
constexpr uint32_t kF16BiasShift = (127 - 15) << 23;

}  // namespace

float BF16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Integer arithmetic throughout: a thread that flushes subnormals to zero must not change a conversion.
float F16ToFloat(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | kF32Inf | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent << 23 | mantissa << 13) + kF16BiasShift));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  // A subnormal, mantissa * 2^-24: its leading one becomes the implicit bit.
  const uint32_t shift = std::countl_zero(mantissa) - 21;
  const uint32_t fraction = (mantissa << shift) & 0x3ff;
  return std::bit_cast<float>(sign | (((1 - shift) << 23) + kF16BiasShift) | fraction << 13);
}

uint16_t FloatToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // Quiet a NaN: the payload bits that are cut off may be the only ones set.
  if ((bits & kF32AbsMask) > kF32Inf) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint16_t FloatToF16(float value) {
  constexpr uint32_t kOverflow = 0x477ff000;   // 65520, half-way between the largest float16 and 2^16
  constexpr uint32_t kMinNormal = 0x38800000;  // 2^-14
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & kF32AbsMask;
  if (magnitude > kF32Inf) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude & kF32MantissaMask) >> 13);
  if (magnitude >= kOverflow) return sign | 0x7c00;
  if (magnitude >= kMinNormal) {
    // A carry out of the mantissa raises the exponent, as it should.
    return static_cast<uint16_t>(sign | ((magnitude - kF16BiasShift + 0xfff + (magnitude >> 13 & 1)) >> 13));
  }
  const uint32_t exponent = magnitude >> 23;
  if (exponent < 102) return sign;  // below 2^-25, half of the smallest subnormal
  const uint32_t mantissa = (magnitude & kF32MantissaMask) | 0x00800000;
  const uint32_t shift = 126 - exponent;  // to units of 2^-24
  const uint32_t half = 1u << (shift - 1);
  const uint32_t rest = mantissa & ((1u << shift) - 1);
  uint32_t rounded = mantissa >> shift;
  if (rest > half || (rest == half && (rounded & 1) != 0)) ++rounded;
  return static_cast<uint16_t>(sign | rounded);
}

size_t DTypeSize(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

std::string_view DTypeName(DType dtype) { return dtype == DType::kF32 ? "F32" : dtype == DType::kF16 ? "F16" : "BF16"; }

absl::StatusOr<DType> ParseDType(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidTensorDtype,
                   StrCat("dtype '", name, "' is not supported; expected F32, F16 or BF16"));
}

}  // namespace gdn
