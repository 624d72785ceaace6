// Device code: loads eight neighbouring weights of a matrix and widens them to float32 exactly.
//
// Loading and widening are separate, so that many loads can be in flight before the first is used.
// Thread safety: pure functions.
//
//   const Bf16Weights::Raw raw = LoadEight<Bf16Weights>(row + f, cols - f, vector);
//   float w[8];  WidenScaled<Bf16Weights>(raw, /*inverse=*/1.0f, w);
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "kernels/gpu/device.h"
#include "kernels/projection/projection.h"

namespace gdn::gpu {

inline constexpr int kWeightVector = 8;

// Eight 16-bit elements, two in the bits of each float, the first in the low half.
struct PackedHalves {
  Vec4 bits;
};

template <typename Format>
struct HalfWeights {
  using Element = uint16_t;
  using Raw = PackedHalves;
  __device__ __forceinline__ static Raw Load(const Element* p) { return {Load4(reinterpret_cast<const float*>(p))}; }
  __device__ __forceinline__ static Raw Pack(const Element (&e)[kWeightVector]) {
    return {{BitsToFloat(e[0] | uint32_t{e[1]} << 16), BitsToFloat(e[2] | uint32_t{e[3]} << 16),
             BitsToFloat(e[4] | uint32_t{e[5]} << 16), BitsToFloat(e[6] | uint32_t{e[7]} << 16)}};
  }
  __device__ __forceinline__ static void Widen(const Raw& raw, float (&w)[kWeightVector]) {
    Format::WidenPair(FloatToBits(raw.bits.x), w);
    Format::WidenPair(FloatToBits(raw.bits.y), w + 2);
    Format::WidenPair(FloatToBits(raw.bits.z), w + 4);
    Format::WidenPair(FloatToBits(raw.bits.w), w + 6);
  }
};

struct Bf16Weights : HalfWeights<Bf16Weights> {
  __device__ __forceinline__ static void WidenPair(uint32_t bits, float* w) {
    w[0] = BitsToFloat(bits << 16);
    w[1] = BitsToFloat(bits & 0xffff0000u);
  }
};

struct F16Weights : HalfWeights<F16Weights> {
  __device__ __forceinline__ static void WidenPair(uint32_t bits, float* w) {
    w[0] = FromF16(static_cast<uint16_t>(bits));
    w[1] = FromF16(static_cast<uint16_t>(bits >> 16));
  }
};

// The weights of a matrix that LiesAsHalves: fp16 numbers, to be multiplied by the inverse of their row's scale.
struct ScaledHalves : F16Weights {};
template <typename Weights>
inline constexpr bool kScaled = std::is_same_v<Weights, ScaledHalves>;

struct F32Weights {
  using Element = float;
  struct Raw {
    Vec4 low;
    Vec4 high;
  };
  __device__ __forceinline__ static Raw Load(const Element* p) { return {Load4(p), Load4(p + 4)}; }
  __device__ __forceinline__ static Raw Pack(const Element (&e)[kWeightVector]) {
    return {{e[0], e[1], e[2], e[3]}, {e[4], e[5], e[6], e[7]}};
  }
  __device__ __forceinline__ static void Widen(const Raw& raw, float (&w)[kWeightVector]) {
    Unpack4(raw.low, w);
    Unpack4(raw.high, w + 4);
  }
};

// Loads elements p[0 .. 8) raw, for Weights::Widen; those from `count` on (it may be negative) are not read and become
// zero. kVector: p is 16-byte aligned and rows have a multiple of eight elements.
template <typename Weights, bool kVector>
__device__ __forceinline__ typename Weights::Raw LoadEight(const typename Weights::Element* p, int64_t count) {
  if constexpr (kVector) {
    if (count >= kWeightVector) return Weights::Load(p);
    return {};
  } else {
    typename Weights::Element e[kWeightVector];
#pragma unroll
    for (int i = 0; i < kWeightVector; ++i) e[i] = i < count ? p[i] : typename Weights::Element{};
    return Weights::Pack(e);
  }
}

// Returns the inverse of a row's scale.
__device__ __forceinline__ float InverseOf(float scale) { return BitsToFloat((254u << 23) - FloatToBits(scale)); }

// Widens eight weights of a row. `inverse`: InverseOf the row's scale, for ScaledHalves only.
template <typename Weights>
__device__ __forceinline__ void WidenScaled(const typename Weights::Raw& raw, [[maybe_unused]] float inverse,
                                            float (&w)[kWeightVector]) {
  Weights::Widen(raw, w);
  if constexpr (kScaled<Weights>) {
#pragma unroll
    for (float& value : w) value *= inverse;
  }
}

// Host code: calls function(ScaledHalves()), or with Bf16Weights, F16Weights or F32Weights, as a plain matrix lies, and
// returns its result.
template <typename Function>
auto WithWeights(const WeightMatrix& weight, Function&& function) {
  if (LiesAsHalves(weight)) return function(ScaledHalves());
  const DType dtype = WidenedDType(weight.format);
  if (dtype == DType::kBF16) return function(Bf16Weights());
  if (dtype == DType::kF16) return function(F16Weights());
  return function(F32Weights());
}

}  // namespace gdn::gpu
