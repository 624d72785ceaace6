// SIMD decoders of quantised weights: 32 neighbouring weights of a row at a time, in registers, with the bits of
// base/weight_format.h's decoder. For each Highway target it is included anew, so the guard toggles.
//
// A format cuts its block into kGroups groups of kPhases times 32 weights; phases are those whose code differs.
// Prepare reads what a block's weights share, once a block.
//
//   using F = QuantizedFormat<WeightFormat::kQ4_K>;
//   F::Shared shared = F::Prepare(block);
//   for (int group = 0; group < F::kGroups; ++group) F::template Decode<1>(d, block, shared, group, w);  // phase 1
#if defined(GDN_KERNELS_PROJECTION_QUANTIZED_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_PROJECTION_QUANTIZED_WEIGHTS_INL_H_
#undef GDN_KERNELS_PROJECTION_QUANTIZED_WEIGHTS_INL_H_
#else
#define GDN_KERNELS_PROJECTION_QUANTIZED_WEIGHTS_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <limits>

#include "base/weight_format.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gdn {
namespace HWY_NAMESPACE {

using FloatTag = hwy::HWY_NAMESPACE::ScalableTag<float>;
using FloatVec = hwy::HWY_NAMESPACE::Vec<FloatTag>;
using IntTag = hwy::HWY_NAMESPACE::RebindToSigned<FloatTag>;
using IntVec = hwy::HWY_NAMESPACE::Vec<IntTag>;
using ByteTag = hwy::HWY_NAMESPACE::Rebind<uint8_t, FloatTag>;

inline constexpr int kChunk = 32;  // weights that are decoded at a time
inline constexpr int kFloatLanes = static_cast<int>(hwy::HWY_NAMESPACE::MaxLanes(FloatTag()));
static_assert(kChunk % kFloatLanes == 0);
inline constexpr int kChunkVectors = kChunk / kFloatLanes;

// The float16 at `at`, in every lane of D.
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> BroadcastHalf(D d, const uint8_t* at) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<hwy::float16_t, D> half;
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return hn::PromoteTo(d, hn::BitCast(half, hn::Set(d16, bits)));
}

HWY_INLINE IntVec LoadBytes(const uint8_t* at) {
  namespace hn = hwy::HWY_NAMESPACE;
  return hn::PromoteTo(IntTag(), hn::LoadU(ByteTag(), at));
}
HWY_INLINE IntVec LoadSignedBytes(const uint8_t* at) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Rebind<int8_t, FloatTag> d8;
  return hn::PromoteTo(IntTag(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(at)));
}

// Of bytes [l, l + lanes) the low (0) or high (1) four bits.
template <int kHalf>
HWY_INLINE IntVec LoadNibbles(const uint8_t* at) {
  namespace hn = hwy::HWY_NAMESPACE;
  const IntVec bytes = LoadBytes(at);
  if constexpr (kHalf == 1) return hn::ShiftRight<4>(bytes);
  return hn::And(bytes, hn::Set(IntTag(), 15));
}

// scale * q - minimum for each 4-bit q.
HWY_INLINE FloatVec ScaledNibbles(FloatVec scale, FloatVec minimum, IntVec q) {
  namespace hn = hwy::HWY_NAMESPACE;
  const FloatTag d;
  if constexpr (kFloatLanes == 16) {  // all sixteen values fit into a vector
    const FloatVec table = hn::MulSub(scale, hn::Iota(d, 0.0f), minimum);
    return hn::TableLookupLanes(table, hn::IndicesFromVec(d, q));
  } else {
    return hn::MulSub(scale, hn::ConvertTo(d, q), minimum);
  }
}

template <WeightFormat>
struct QuantizedFormat;

template <>
struct QuantizedFormat<WeightFormat::kQ8_0> {
  static constexpr int kGroups = 1;
  static constexpr int kPhases = 1;
  struct Shared {};
  static HWY_INLINE Shared Prepare(const uint8_t* /*block*/, const float* /*scale*/) { return {}; }
  template <int kPhase>
  static HWY_INLINE void Decode(const uint8_t* block, const Shared& /*shared*/, int /*group*/, FloatVec* w) {
    namespace hn = hwy::HWY_NAMESPACE;
    const FloatTag d;
    const FloatVec scale = BroadcastHalf(d, block);
    HWY_UNROLL(32) for (int v = 0; v < kChunkVectors; ++v) {
      w[v] = hn::Mul(scale, hn::ConvertTo(d, LoadSignedBytes(block + 2 + v * kFloatLanes)));
    }
  }
};

template <>
struct QuantizedFormat<WeightFormat::kQ4_0> {
  static constexpr int kGroups = 1;
  static constexpr int kPhases = 1;
  struct Shared {};
  static HWY_INLINE Shared Prepare(const uint8_t* /*block*/, const float* /*scale*/) { return {}; }
  template <int kPhase>
  static HWY_INLINE void Decode(const uint8_t* block, const Shared& /*shared*/, int /*group*/, FloatVec* w) {
    namespace hn = hwy::HWY_NAMESPACE;
    const FloatTag d;
    const FloatVec scale = BroadcastHalf(d, block);
    const FloatVec minimum = hn::Mul(scale, hn::Set(d, 8.0f));
    HWY_UNROLL(16) for (int v = 0; v < kChunkVectors / 2; ++v) {
      const uint8_t* at = block + 2 + v * kFloatLanes;
      w[v] = ScaledNibbles(scale, minimum, LoadNibbles<0>(at));
      w[kChunkVectors / 2 + v] = ScaledNibbles(scale, minimum, LoadNibbles<1>(at));
    }
  }
};

// What Q4_K's and Q5_K's blocks begin with: float16 d and m, and eight pairs of 6 bits in 12 bytes. The first four
// pairs have six bits of a byte each; of the others four bits lie in bytes of their own and two above the first's.
struct PairScales {
  alignas(32) float scale[8];
  alignas(32) float minimum[8];

  static HWY_INLINE PairScales Of(const uint8_t* block) {
    uint32_t low, middle, high;
    std::memcpy(&low, block + 4, 4);
    std::memcpy(&middle, block + 8, 4);
    std::memcpy(&high, block + 12, 4);
    const uint32_t scales[2] = {low & 0x3f3f3f3f, (high & 0x0f0f0f0f) | (low >> 6 & 0x03030303) << 4};
    const uint32_t minima[2] = {middle & 0x3f3f3f3f, (high >> 4 & 0x0f0f0f0f) | (middle >> 6 & 0x03030303) << 4};
    PairScales pairs;
    Multiply(block, scales, pairs.scale);
    Multiply(block + 2, minima, pairs.minimum);
    return pairs;
  }

 private:
  static HWY_INLINE void Multiply(const uint8_t* factor, const uint32_t (&bytes)[2], float* out) {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::CappedTag<float, 8> d;
    const hn::RebindToSigned<decltype(d)> di;
    const hn::Rebind<uint8_t, decltype(d)> d8;
    const auto wide = BroadcastHalf(d, factor);
    for (size_t i = 0; i < 8; i += hn::Lanes(d)) {
      const auto packed = hn::LoadU(d8, reinterpret_cast<const uint8_t*>(bytes) + i);
      hn::StoreU(hn::Mul(wide, hn::ConvertTo(d, hn::PromoteTo(di, packed))), d, out + i);
    }
  }
};

template <>
struct QuantizedFormat<WeightFormat::kQ4_K> {
  static constexpr int kGroups = 4;
  static constexpr int kPhases = 2;  // the low halves of 32 bytes, then the high ones
  using Shared = PairScales;
  static HWY_INLINE Shared Prepare(const uint8_t* block, const float* /*scale*/) { return PairScales::Of(block); }
  template <int kPhase>
  static HWY_INLINE void Decode(const uint8_t* block, const Shared& shared, int group, FloatVec* w) {
    namespace hn = hwy::HWY_NAMESPACE;
    const FloatTag d;
    const FloatVec scale = hn::Set(d, shared.scale[2 * group + kPhase]);
    const FloatVec minimum = hn::Set(d, shared.minimum[2 * group + kPhase]);
    HWY_UNROLL(32) for (int v = 0; v < kChunkVectors; ++v) {
      w[v] = ScaledNibbles(scale, minimum, LoadNibbles<kPhase>(block + 16 + group * 32 + v * kFloatLanes));
    }
  }
};

template <>
struct QuantizedFormat<WeightFormat::kQ5_K> {
  static constexpr int kGroups = 4;
  static constexpr int kPhases = 2;
  using Shared = PairScales;
  static HWY_INLINE Shared Prepare(const uint8_t* block, const float* /*scale*/) { return PairScales::Of(block); }
  template <int kPhase>
  static HWY_INLINE void Decode(const uint8_t* block, const Shared& shared, int group, FloatVec* w) {
    namespace hn = hwy::HWY_NAMESPACE;
    const FloatTag d;
    const IntTag di;
    const int pair = 2 * group + kPhase;
    const FloatVec scale = hn::Set(d, shared.scale[pair]);
    const FloatVec minimum = hn::Set(d, shared.minimum[pair]);
    HWY_UNROLL(32) for (int v = 0; v < kChunkVectors; ++v) {
      const IntVec fifth = hn::And(hn::ShiftRightSame(LoadBytes(block + 16 + v * kFloatLanes), pair), hn::Set(di, 1));
      const IntVec q = LoadNibbles<kPhase>(block + 48 + group * 32 + v * kFloatLanes);
      w[v] = hn::MulSub(scale, hn::ConvertTo(d, hn::Or(q, hn::ShiftLeft<4>(fifth))), minimum);
    }
  }
};

template <>
struct QuantizedFormat<WeightFormat::kQ6_K> {
  static constexpr int kGroups = 2;
  static constexpr int kPhases = 4;  // two low and two high halves of 64 bytes; two bits each of 32 more
  struct Shared {
    alignas(64) float scale[16];
  };
  static HWY_INLINE Shared Prepare(const uint8_t* block, const float* /*scale*/) {
    namespace hn = hwy::HWY_NAMESPACE;
    const FloatTag d;
    const FloatVec factor = BroadcastHalf(d, block + 208);
    Shared shared;
    for (int i = 0; i < 16; i += kFloatLanes) {
      hn::StoreU(hn::Mul(factor, hn::ConvertTo(d, LoadSignedBytes(block + 192 + i))), d, shared.scale + i);
    }
    return shared;
  }
  template <int kPhase>
  static HWY_INLINE void Decode(const uint8_t* block, const Shared& shared, int group, FloatVec* w) {
    namespace hn = hwy::HWY_NAMESPACE;
    const FloatTag d;
    const IntTag di;
    HWY_UNROLL(32) for (int v = 0; v < kChunkVectors; ++v) {
      const int l = v * kFloatLanes;
      const IntVec low = LoadNibbles<kPhase / 2>(block + group * 64 + kPhase % 2 * 32 + l);
      const IntVec high = hn::And(hn::ShiftRight<2 * kPhase>(LoadBytes(block + 128 + group * 32 + l)), hn::Set(di, 3));
      const IntVec q = hn::Sub(hn::Or(low, hn::ShiftLeft<4>(high)), hn::Set(di, 32));
      w[v] = hn::Mul(hn::Set(d, shared.scale[group * 8 + kPhase * 2 + l / 16]), hn::ConvertTo(d, q));
    }
  }
};

// A "block" of 32 bytes of a row; `scale` is that of its 128.
template <>
struct QuantizedFormat<WeightFormat::kF8E4M3> {
  static constexpr int kGroups = 1;
  static constexpr int kPhases = 1;
  struct Shared {
    float scale;
  };
  static HWY_INLINE Shared Prepare(const uint8_t* /*block*/, const float* scale) { return {*scale}; }
  // The exponents of float16 have one bit more and a bias greater by 8, so shifted into its place a code is the 256th
  // part of its value, subnormal or not.
  template <int kPhase>
  static HWY_INLINE void Decode(const uint8_t* block, const Shared& shared, int /*group*/, FloatVec* w) {
    namespace hn = hwy::HWY_NAMESPACE;
    const FloatTag d;
    const hn::Rebind<uint16_t, FloatTag> d16;
    const hn::Rebind<hwy::float16_t, FloatTag> half;
    const FloatVec nan = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
    HWY_UNROLL(32) for (int v = 0; v < kChunkVectors; ++v) {
      const auto code = hn::PromoteTo(d16, hn::LoadU(ByteTag(), block + v * kFloatLanes));
      const auto magnitude = hn::And(code, hn::Set(d16, uint16_t{0x7f}));
      const auto sign = hn::ShiftLeft<8>(hn::And(code, hn::Set(d16, uint16_t{0x80})));
      const auto part = hn::PromoteTo(d, hn::BitCast(half, hn::Or(sign, hn::ShiftLeft<7>(magnitude))));
      const auto value = hn::Mul(part, hn::Set(d, 256.0f));
      const auto number = hn::IfThenElse(hn::Gt(hn::Abs(value), hn::Set(d, 448.0f)), nan, value);
      w[v] = hn::Mul(number, hn::Set(d, shared.scale));
    }
  }
};

// function(QuantizedFormat<format>()).
template <class Function>
HWY_INLINE void WithQuantizedFormat(WeightFormat format, const Function& function) {
  switch (format) {
    case WeightFormat::kF8E4M3:
      return function(std::integral_constant<WeightFormat, WeightFormat::kF8E4M3>());
    case WeightFormat::kQ8_0:
      return function(std::integral_constant<WeightFormat, WeightFormat::kQ8_0>());
    case WeightFormat::kQ4_0:
      return function(std::integral_constant<WeightFormat, WeightFormat::kQ4_0>());
    case WeightFormat::kQ4_K:
      return function(std::integral_constant<WeightFormat, WeightFormat::kQ4_K>());
    case WeightFormat::kQ5_K:
      return function(std::integral_constant<WeightFormat, WeightFormat::kQ5_K>());
    case WeightFormat::kQ6_K:
      return function(std::integral_constant<WeightFormat, WeightFormat::kQ6_K>());
    default:
      return;  // plain ones are not quantised
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace gdn
HWY_AFTER_NAMESPACE();

#endif  // GDN_KERNELS_PROJECTION_QUANTIZED_WEIGHTS_INL_H_
