// SIMD decoders of quantised weights in blocks of 256, with the interface of quantized_weights-inl.h. Included once per
// Highway target, so the guard toggles.
#if defined(GDN_KERNELS_PROJECTION_QUANTIZED_BLOCKS256_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_PROJECTION_QUANTIZED_BLOCKS256_INL_H_
#undef GDN_KERNELS_PROJECTION_QUANTIZED_BLOCKS256_INL_H_
#else
#define GDN_KERNELS_PROJECTION_QUANTIZED_BLOCKS256_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "base/iq3s_grid.h"
#include "base/weight_format.h"
#include "hwy/highway.h"
#include "kernels/projection/quantized_weights-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

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

// Q2_K and Q3_K have 32 bytes for each 128 weights: two bits of 32 neighbours, then of the next 32, in order. Each 16
// weights have a scale.
template <>
struct QuantizedFormat<WeightFormat::kQ2_K> {
  static constexpr int kGroups = 2;
  static constexpr int kPhases = 4;
  struct Shared {
    alignas(64) float scale[16];
    float minimum[16];
  };
  static HWY_INLINE Shared Prepare(const uint8_t* block, const float* /*scale*/) {
    const FloatTag d;
    const FloatVec factor = BroadcastHalf(block + 80);
    const FloatVec minimum = BroadcastHalf(block + 82);
    Shared shared;
    for (int i = 0; i < 16; i += kFloatLanes) {
      const IntVec scales = hn::And(LoadBytes(block + i), hn::Set(IntTag(), 15));
      hn::StoreU(hn::Mul(factor, hn::ConvertTo(d, scales)), d, shared.scale + i);
      hn::StoreU(hn::Mul(minimum, hn::ConvertTo(d, LoadShifted<4>(block + i))), d, shared.minimum + i);
    }
    return shared;
  }
  template <int kPhase>
  static HWY_INLINE void Decode(const uint8_t* block, const Shared& shared, int group, FloatVec* w) {
    const FloatTag d;
    HWY_UNROLL(32) for (int v = 0; v < kChunkVectors; ++v) {
      const int l = v * kFloatLanes;
      const int pair = group * 8 + kPhase * 2 + l / 16;
      const IntVec q = hn::And(LoadShifted<2 * kPhase>(block + 16 + group * 32 + l), hn::Set(IntTag(), 3));
      w[v] = hn::MulSub(hn::Set(d, shared.scale[pair]), hn::ConvertTo(d, q), hn::Set(d, shared.minimum[pair]));
    }
  }
};

template <>
struct QuantizedFormat<WeightFormat::kQ3_K> {
  static constexpr int kGroups = 2;
  static constexpr int kPhases = 4;
  struct Shared {
    alignas(64) float scale[16];
  };
  // Four bytes at a time: 8 bytes have low halves of 16 six-bit numbers, and 4 bytes their two high bits.
  static HWY_INLINE Shared Prepare(const uint8_t* block, const float* /*scale*/) {
    uint32_t words[3];
    std::memcpy(words, block + 96, sizeof(words));
    alignas(16) uint32_t numbers[4];
    for (int i = 0; i < 4; ++i) {
      const uint32_t number = (words[i % 2] >> 4 * (i / 2) & 0x0f0f0f0f) | (words[2] >> 2 * i & 0x03030303) << 4;
      numbers[i] = ((number | 0x80808080) - 0x20202020) ^ 0x80808080;  // each byte less 32
    }
    const FloatVec factor = BroadcastHalf(block + 108);
    Shared shared;
    for (int i = 0; i < 16; i += kFloatLanes) {
      hn::StoreU(ScaledBytes(factor, reinterpret_cast<const uint8_t*>(numbers) + i), FloatTag(), shared.scale + i);
    }
    return shared;
  }
  template <int kPhase>
  static HWY_INLINE void Decode(const uint8_t* block, const Shared& shared, int group, FloatVec* w) {
    const FloatTag d;
    const IntTag di;
    HWY_UNROLL(32) for (int v = 0; v < kChunkVectors; ++v) {
      const int l = v * kFloatLanes;
      const IntVec third = hn::And(hn::ShiftRightSame(LoadBytes(block + l), group * 4 + kPhase), hn::Set(di, 1));
      const IntVec low = hn::And(LoadShifted<2 * kPhase>(block + 32 + group * 32 + l), hn::Set(di, 3));
      const IntVec q = hn::Sub(hn::Or(low, hn::ShiftLeft<2>(third)), hn::Set(di, 4));
      w[v] = hn::Mul(hn::Set(d, shared.scale[group * 8 + kPhase * 2 + l / 16]), hn::ConvertTo(d, q));
    }
  }
};

// Scales of the eight runs of 32 weights in a block of IQ4_XS or IQ3_S.
struct RunScales {
  float scale[8];
};

template <>
struct QuantizedFormat<WeightFormat::kIQ4_XS> {
  static constexpr int kGroups = 8;
  static constexpr int kPhases = 1;
  using Shared = RunScales;
  static HWY_INLINE Shared Prepare(const uint8_t* block, const float* /*scale*/) {
    const float d = HalfAt(block);
    uint32_t low;
    uint16_t high;
    std::memcpy(&high, block + 2, sizeof(high));
    std::memcpy(&low, block + 4, sizeof(low));
    Shared shared;
    for (int i = 0; i < 8; ++i) {
      const int32_t number = static_cast<int32_t>((low >> 4 * i & 15) | (high >> 2 * i & 3u) << 4);
      shared.scale[i] = d * static_cast<float>(number - 32);
    }
    return shared;
  }
  template <int kPhase>
  static HWY_INLINE void Decode(const uint8_t* block, const Shared& shared, int group, FloatVec* w) {
    DecodeIq4(hn::Set(FloatTag(), shared.scale[group]), block + 8 + 16 * group, w);
  }
};

template <>
struct QuantizedFormat<WeightFormat::kIQ3_S> {
  static constexpr int kGroups = 8;
  static constexpr int kPhases = 1;
  using Shared = RunScales;
  static HWY_INLINE Shared Prepare(const uint8_t* block, const float* /*scale*/) {
    const float d = HalfAt(block);
    Shared shared;
    for (int i = 0; i < 8; ++i) {
      shared.scale[i] = d * static_cast<float>(1 + 2 * (block[106 + i / 2] >> 4 * (i % 2) & 15));
    }
    return shared;
  }
  template <int kPhase>
  static HWY_INLINE void Decode(const uint8_t* block, const Shared& shared, int group, FloatVec* w) {
    const FloatVec scale = hn::Set(FloatTag(), shared.scale[group]);
    const uint8_t* low = block + 2 + 8 * group;
    const uint32_t high = block[66 + group];
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
    // Eight entries of the table at once.
    const __m256i ninth = _mm256_and_si256(
        _mm256_sllv_epi32(_mm256_set1_epi32(static_cast<int>(high)), _mm256_setr_epi32(8, 7, 6, 5, 4, 3, 2, 1)),
        _mm256_set1_epi32(256));
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(low));
    const __m256i q = _mm256_or_si256(_mm256_cvtepu8_epi32(bytes), ninth);
    const __m256i magnitudes = _mm256_i32gather_epi32(reinterpret_cast<const int*>(kIq3sGrid), q, 4);
    uint32_t signs;
    std::memcpy(&signs, block + 74 + 4 * group, sizeof(signs));
    const __m256i values = _mm256_mask_sub_epi8(magnitudes, signs, _mm256_setzero_si256(), magnitudes);
    const __m512 first = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(values)));
    const __m512 second = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(values, 1)));
    w[0] = hn::Mul(scale, FloatVec{first});
    w[1] = hn::Mul(scale, FloatVec{second});
#else
    constexpr uint64_t kOnes = 0x0101010101010101;
    alignas(64) uint64_t values[kChunk / 8];
    HWY_UNROLL(4) for (int i = 0; i < kChunk / 8; ++i) {
      const uint64_t first = kIq3sGrid[low[2 * i] | (high >> 2 * i & 1) << 8];
      const uint64_t second = kIq3sGrid[low[2 * i + 1] | (high >> (2 * i + 1) & 1) << 8];
      // Byte j becomes 1 if bit j of the signs is set, else 0. Such a byte is complemented, and 1 is added.
      const uint64_t bits = (block[74 + 4 * group + i] * kOnes) & 0x8040201008040201;
      const uint64_t negative = (bits + 0x7f * kOnes) >> 7 & kOnes;
      values[i] = ((first | second << 32) ^ negative * 0xff) + negative;
    }
    HWY_UNROLL(32) for (int v = 0; v < kChunkVectors; ++v) {
      w[v] = ScaledBytes(scale, reinterpret_cast<const uint8_t*>(values) + v * kFloatLanes);
    }
#endif
  }
};

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // GDN_KERNELS_PROJECTION_QUANTIZED_BLOCKS256_INL_H_
