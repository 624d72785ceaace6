// SIMD decoders of quantised weights: 32 neighbouring weights of a row at a time, in registers, with the same bits as
// base/weight_format.h's decoder if the factors are finite. Included once per Highway target, so the guard toggles.
//
// A format divides its block into kGroups groups of kPhases times 32 weights; each phase has its own code.
// PrepareBlocks reads the data that a block's weights share, once per block, for up to four rows at a time.
//
//   using F = QuantizedFormat<WeightFormat::kQ4_K>;
//   F::Shared shared[1];
//   PrepareBlocks<F>({block}, {scale}, shared);
//   for (int group = 0; group < F::kGroups; ++group) F::template Decode<1>(block, shared[0], group, w);  // phase 1
#if defined(GDN_KERNELS_PROJECTION_QUANTIZED_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_PROJECTION_QUANTIZED_WEIGHTS_INL_H_
#undef GDN_KERNELS_PROJECTION_QUANTIZED_WEIGHTS_INL_H_
#else
#define GDN_KERNELS_PROJECTION_QUANTIZED_WEIGHTS_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/weight_format.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vector types, and loads of a block's bytes into lanes in memory order. No load reads past the bytes that its name
// says, because a matrix may end where its file's mapping ends.
using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
using IntTag = hn::RebindToSigned<FloatTag>;
using IntVec = hn::Vec<IntTag>;
using ByteTag = hn::Rebind<uint8_t, FloatTag>;
using ByteVec = hn::Vec<ByteTag>;

inline constexpr int kFloatLanes = static_cast<int>(hn::MaxLanes(FloatTag()));

HWY_INLINE float HalfAt(const uint8_t* at) {
  const hn::CappedTag<float, 1> d;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return hn::GetLane(hn::PromoteTo(d, hn::BitCast(half, hn::Set(d16, bits))));
}

HWY_INLINE ByteVec LoadNarrow(const uint8_t* at) { return hn::LoadU(ByteTag(), at); }
HWY_INLINE IntVec LoadBytes(const uint8_t* at) { return hn::PromoteTo(IntTag(), LoadNarrow(at)); }
template <int kShift>
HWY_INLINE IntVec LoadShifted(const uint8_t* at) {
  return hn::ShiftRight<kShift>(LoadBytes(at));
}

HWY_INLINE FloatVec BroadcastHalf(const uint8_t* at) { return hn::Set(FloatTag(), HalfAt(at)); }

// Returns `scale` times a vector of signed bytes at `at`, one byte a lane.
HWY_INLINE FloatVec ScaledBytes(FloatVec scale, const uint8_t* at) {
  const hn::Rebind<int8_t, FloatTag> d8;
  const auto bytes = hn::LoadU(d8, reinterpret_cast<const int8_t*>(at));
  return hn::Mul(scale, hn::ConvertTo(FloatTag(), hn::PromoteTo(IntTag(), bytes)));
}

inline constexpr int kChunk = 32;  // weights decoded at a time
static_assert(kChunk % kFloatLanes == 0);
inline constexpr int kChunkVectors = kChunk / kFloatLanes;

// Returns scale * q - minimum, rounded once, with q the low four bits of each element of `bits`; higher bits are
// ignored.
HWY_INLINE FloatVec ScaledNibbles(FloatVec scale, FloatVec minimum, IntVec bits) {
  const FloatTag d;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  // All sixteen values fit into a vector, and the look-up uses the low four bits only.
  return hn::TableLookupLanes(hn::MulSub(scale, hn::Iota(d, 0.0f), minimum), hn::Indices512<float>{bits.raw});
#else
  return hn::MulSub(scale, hn::ConvertTo(d, hn::And(bits, hn::Set(IntTag(), 15))), minimum);
#endif
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
    const FloatVec scale = BroadcastHalf(block);
    HWY_UNROLL(32) for (int v = 0; v < kChunkVectors; ++v) w[v] = ScaledBytes(scale, block + 2 + v * kFloatLanes);
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
    const FloatTag d;
    const FloatVec scale = BroadcastHalf(block);
    const FloatVec minimum = hn::Mul(scale, hn::Set(d, 8.0f));
    HWY_UNROLL(16) for (int v = 0; v < kChunkVectors / 2; ++v) {
      const uint8_t* at = block + 2 + v * kFloatLanes;
      w[v] = ScaledNibbles(scale, minimum, LoadShifted<0>(at));
      w[kChunkVectors / 2 + v] = ScaledNibbles(scale, minimum, LoadShifted<4>(at));
    }
  }
};

// The scales and minima of the 8 runs of 32 weights in a Q4_K or Q5_K block. The block begins with float16 d and m and
// then has 8 pairs of 6-bit numbers in 12 bytes; a pair is the scale and minimum of one run. The first 4 pairs fill six
// bits of a byte; the others have their low 4 bits in own bytes, the high 2 above the first pairs.
struct PairScales {
  alignas(64) float scale[8];  // d times the pair's first number; minimum, right behind it: m times the second
  float minimum[8];

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  // Reads the scales of one block for each of kRows rows, at most 4. Each row's first 16 bytes are a quarter of a
  // vector. Its words are: d and m; the first four scales; the first four minima; the low bits of the others.
  template <int kRows>
  static HWY_INLINE void Of(const uint8_t* const (&blocks)[kRows], PairScales (&pairs)[kRows]) {
    static_assert(kRows <= 4);
    __m512i words = _mm512_castsi128_si512(HeadOf(blocks[0]));
    if constexpr (kRows > 1) words = _mm512_inserti32x4(words, HeadOf(blocks[1]), 1);
    if constexpr (kRows > 2) words = _mm512_inserti32x4(words, HeadOf(blocks[2]), 2);
    if constexpr (kRows > 3) words = _mm512_inserti32x4(words, HeadOf(blocks[3]), 3);
    constexpr auto kOwnWords = static_cast<_MM_PERM_ENUM>(1 | 3 << 2 | 2 << 4 | 3 << 6);
    constexpr auto kOtherWords = static_cast<_MM_PERM_ENUM>(1 | 1 << 2 | 2 << 4 | 2 << 6);
    const __m512i own = _mm512_srlv_epi32(_mm512_shuffle_epi32(words, kOwnWords), InQuarters(0, 0, 0, 4));
    const __m512i others = _mm512_srlv_epi32(_mm512_shuffle_epi32(words, kOtherWords), InQuarters(0, 2, 0, 2));
    const __m512i numbers =
        _mm512_or_si512(_mm512_and_si512(own, InQuarters(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f)),
                        _mm512_and_si512(others, InQuarters(0, 0x30303030, 0, 0x30303030)));
    alignas(64) uint8_t bytes[64];
    _mm512_store_si512(bytes, numbers);
    const __m512i first_words = _mm512_permutexvar_epi32(InQuarters(0, 4, 8, 12), words);
    const __m512 factors = _mm512_castps256_ps512(_mm256_cvtph_ps(_mm512_castsi512_si128(first_words)));
    HWY_UNROLL(4) for (int r = 0; r < kRows; ++r) {
      const __m512i d_and_m =
          _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), _mm512_set1_epi32(2 * r));
      const __m512i row = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes + 16 * r)));
      _mm512_store_ps(pairs[r].scale, _mm512_mul_ps(_mm512_permutexvar_ps(d_and_m, factors), _mm512_cvtepi32_ps(row)));
    }
  }

 private:
  static HWY_INLINE __m128i HeadOf(const uint8_t* block) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(block));
  }
  static HWY_INLINE __m512i InQuarters(int a, int b, int c, int d) {
    return _mm512_setr_epi32(a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d);
  }
#else
  template <int kRows>
  static HWY_INLINE void Of(const uint8_t* const (&blocks)[kRows], PairScales (&pairs)[kRows]) {
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* block = blocks[r];
      uint32_t low, middle, high;
      std::memcpy(&low, block + 4, 4);
      std::memcpy(&middle, block + 8, 4);
      std::memcpy(&high, block + 12, 4);
      const uint32_t scales[2] = {low & 0x3f3f3f3f, (high & 0x0f0f0f0f) | (low >> 6 & 0x03030303) << 4};
      const uint32_t minima[2] = {middle & 0x3f3f3f3f, (high >> 4 & 0x0f0f0f0f) | (middle >> 6 & 0x03030303) << 4};
      Multiply(block, scales, pairs[r].scale);
      Multiply(block + 2, minima, pairs[r].minimum);
    }
  }

 private:
  static HWY_INLINE void Multiply(const uint8_t* factor, const uint32_t (&bytes)[2], float* out) {
    const hn::CappedTag<float, 8> d;
    const hn::RebindToSigned<decltype(d)> di;
    const hn::Rebind<uint8_t, decltype(d)> d8;
    const auto wide = hn::Set(d, HalfAt(factor));
    for (size_t i = 0; i < 8; i += hn::Lanes(d)) {
      const auto packed = hn::LoadU(d8, reinterpret_cast<const uint8_t*>(bytes) + i);
      hn::StoreU(hn::Mul(wide, hn::ConvertTo(d, hn::PromoteTo(di, packed))), d, out + i);
    }
  }
#endif
};

template <>
struct QuantizedFormat<WeightFormat::kQ4_K> {
  static constexpr int kGroups = 4;
  static constexpr int kPhases = 2;  // the low halves of 32 bytes, then the high halves
  using Shared = PairScales;
  template <int kPhase>
  static HWY_INLINE void Decode(const uint8_t* block, const Shared& shared, int group, FloatVec* w) {
    const FloatTag d;
    const FloatVec scale = hn::Set(d, shared.scale[2 * group + kPhase]);
    const FloatVec minimum = hn::Set(d, shared.minimum[2 * group + kPhase]);
    HWY_UNROLL(32) for (int v = 0; v < kChunkVectors; ++v) {
      w[v] = ScaledNibbles(scale, minimum, LoadShifted<4 * kPhase>(block + 16 + group * 32 + v * kFloatLanes));
    }
  }
};

template <>
struct QuantizedFormat<WeightFormat::kQ5_K> {
  static constexpr int kGroups = 4;
  static constexpr int kPhases = 2;
  using Shared = PairScales;
  template <int kPhase>
  static HWY_INLINE void Decode(const uint8_t* block, const Shared& shared, int group, FloatVec* w) {
    const FloatTag d;
    const IntTag di;
    const int pair = 2 * group + kPhase;
    const FloatVec scale = hn::Set(d, shared.scale[pair]);
    const FloatVec minimum = hn::Set(d, shared.minimum[pair]);
    HWY_UNROLL(32) for (int v = 0; v < kChunkVectors; ++v) {
      const IntVec fifth = hn::And(hn::ShiftRightSame(LoadBytes(block + 16 + v * kFloatLanes), pair), hn::Set(di, 1));
      const IntVec q = hn::And(LoadShifted<4 * kPhase>(block + 48 + group * 32 + v * kFloatLanes), hn::Set(di, 15));
      w[v] = hn::MulSub(scale, hn::ConvertTo(d, hn::Or(q, hn::ShiftLeft<4>(fifth))), minimum);
    }
  }
};

template <>
struct QuantizedFormat<WeightFormat::kQ6_K> {
  static constexpr int kGroups = 2;
  static constexpr int kPhases = 4;  // two low and two high halves of 64 bytes, with two bits each of 32 more bytes
  struct Shared {
    alignas(64) float scale[16];
  };
  static HWY_INLINE Shared Prepare(const uint8_t* block, const float* /*scale*/) {
    const FloatVec factor = BroadcastHalf(block + 208);
    Shared shared;
    for (int i = 0; i < 16; i += kFloatLanes) {
      hn::StoreU(ScaledBytes(factor, block + 192 + i), FloatTag(), shared.scale + i);
    }
    return shared;
  }
  template <int kPhase>
  static HWY_INLINE void Decode(const uint8_t* block, const Shared& shared, int group, FloatVec* w) {
    const FloatTag d;
    const IntTag di;
    HWY_UNROLL(32) for (int v = 0; v < kChunkVectors; ++v) {
      const int l = v * kFloatLanes;
      const IntVec low =
          hn::And(LoadShifted<kPhase / 2 * 4>(block + group * 64 + kPhase % 2 * 32 + l), hn::Set(di, 15));
      const IntVec high = hn::And(LoadShifted<2 * kPhase>(block + 128 + group * 32 + l), hn::Set(di, 3));
      const IntVec q = hn::Sub(hn::Or(low, hn::ShiftLeft<4>(high)), hn::Set(di, 32));
      w[v] = hn::Mul(hn::Set(d, shared.scale[group * 8 + kPhase * 2 + l / 16]), hn::ConvertTo(d, q));
    }
  }
};

// Decodes F8_E4M3, whose "block" here is 32 bytes of a row; `scale` points to the scale of the 128 x 128 weights around
// it.
template <>
struct QuantizedFormat<WeightFormat::kF8E4M3> {
  static constexpr int kGroups = 1;
  static constexpr int kPhases = 1;
  struct Shared {
    float scale;
  };
  static HWY_INLINE Shared Prepare(const uint8_t* /*block*/, const float* scale) { return {*scale}; }
  // float16 has one exponent bit more and a bias greater by 8. So a code shifted into its place is 1/256 of its value,
  // subnormal or not.
  template <int kPhase>
  static HWY_INLINE void Decode(const uint8_t* block, const Shared& shared, int /*group*/, FloatVec* w) {
    const FloatTag d;
    const hn::Rebind<uint16_t, FloatTag> d16;
    const hn::Rebind<hwy::float16_t, FloatTag> half;
    const FloatVec nan = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
    HWY_UNROLL(32) for (int v = 0; v < kChunkVectors; ++v) {
      const auto code = hn::PromoteTo(d16, LoadNarrow(block + v * kFloatLanes));
      const auto magnitude = hn::And(code, hn::Set(d16, uint16_t{0x7f}));
      const auto sign = hn::ShiftLeft<8>(hn::And(code, hn::Set(d16, uint16_t{0x80})));
      const auto part = hn::PromoteTo(d, hn::BitCast(half, hn::Or(sign, hn::ShiftLeft<7>(magnitude))));
      const auto value = hn::Mul(part, hn::Set(d, 256.0f));
      const auto number = hn::IfThenElse(hn::Gt(hn::Abs(value), hn::Set(d, 448.0f)), nan, value);
      w[v] = hn::Mul(number, hn::Set(d, shared.scale));
    }
  }
};

// Reads into shared[r] the data that the weights of row r's block share, for kRows (at most 4) rows. scales[r] points
// to the block's scale for F8_E4M3 and is not read for other formats.
template <class Format, int kRows>
HWY_INLINE void PrepareBlocks(const uint8_t* const (&blocks)[kRows], const float* const (&scales)[kRows],
                              typename Format::Shared (&shared)[kRows]) {
  if constexpr (std::is_same_v<typename Format::Shared, PairScales>) {
    PairScales::Of(blocks, shared);
  } else {
    HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) shared[r] = Format::Prepare(blocks[r], scales[r]);
  }
}

// Calls function(std::integral_constant<WeightFormat, format>()) for a quantised format; does nothing for a plain one.
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

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // GDN_KERNELS_PROJECTION_QUANTIZED_WEIGHTS_INL_H_
