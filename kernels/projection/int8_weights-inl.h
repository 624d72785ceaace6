// SIMD decoders of GGUF's weights for int8 products: codes, scales and offsets. Included once per Highway target, so
// the guard toggles.
//
// A run is 32 neighbouring weights of a row. Weight i of a run is scale * (codes[i] - kZero) + offset. Codes are at
// most kLargest. A run has kHalves scales, each for 32 / kHalves weights, and as many offsets if kHasOffset. Products
// know nothing else of a format. Scales and offsets are exact in float32.
// With AVX-512, PairCodes gives the codes of two neighbouring runs.
// No load reads outside a block, because a matrix may end where its file's mapping ends.
//
//   using F = Int8Format<WeightFormat::kQ4_K>;
//   F::Factors({row0, row1, row2, row3}, FactorsTo<kRunStride, kHalfStride>{scales, offsets});  // a block of each
//   CodeVec codes[kRunVectors];
//   F::Codes(row0, run, codes);
#if defined(GDN_KERNELS_PROJECTION_INT8_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_PROJECTION_INT8_WEIGHTS_INL_H_
#undef GDN_KERNELS_PROJECTION_INT8_WEIGHTS_INL_H_
#else
#define GDN_KERNELS_PROJECTION_INT8_WEIGHTS_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "base/iq3s_grid.h"
#include "base/product_math.h"
#include "base/weight_format.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kRun = kInt8Block;
using CodeTag = hn::CappedTag<uint8_t, kRun>;
using CodeVec = hn::Vec<CodeTag>;
inline constexpr int kCodeLanes = static_cast<int>(hn::MaxLanes(CodeTag()));
inline constexpr int kRunVectors = kRun / kCodeLanes;

// One element for each of four rows. Highway's scalar target has no vectors of four lanes, hence the compiler's.
inline constexpr int kQuad = 4;
using QuadFloats = float __attribute__((vector_size(16)));
using QuadWords = uint32_t __attribute__((vector_size(16)));
using QuadInts = int32_t __attribute__((vector_size(16)));
using QuadBlocks = const uint8_t* const (&)[kQuad];

// Places for the factors of four rows: of run r and half h at + r * kRunStride + h * kHalfStride, four floats.
template <int kRunStride, int kHalfStride>
struct FactorsTo {
  float* scales;
  float* offsets;

  static HWY_INLINE void Store(float* to, int run, int half, QuadFloats values) {
    std::memcpy(to + run * kRunStride + half * kHalfStride, &values, sizeof(values));
  }
  // Stores `factor` times (byte - zero) for each byte of `words`, for the runs and halves from number `first` on.
  template <int kHalves>
  static HWY_INLINE void StoreBytes(float* to, int first, QuadFloats factor, QuadWords words, int zero) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
    if constexpr (kRunStride == kQuad) {
      constexpr int kSecond = kHalves == 1 ? 8 : 16;  // two runs' first halves, then their second ones
      const __m512i shifts = _mm512_setr_epi32(0, 0, 0, 0, kSecond, kSecond, kSecond, kSecond, 24 - kSecond,
                                               24 - kSecond, 24 - kSecond, 24 - kSecond, 24, 24, 24, 24);
      const __m512i all = _mm512_broadcast_i32x4(reinterpret_cast<__m128i>(words));
      const __m512i bytes = _mm512_and_si512(_mm512_srlv_epi32(all, shifts), _mm512_set1_epi32(255));
      const __m512 numbers = _mm512_cvtepi32_ps(_mm512_sub_epi32(bytes, _mm512_set1_epi32(zero)));
      const __m512 scaled = _mm512_mul_ps(_mm512_broadcast_f32x4(reinterpret_cast<__m128>(factor)), numbers);
      if constexpr (kHalves == 1) {
        _mm512_storeu_ps(to + first * kQuad, scaled);
      } else {
        float* const at = to + first / 2 * kQuad;
        _mm256_storeu_ps(at, _mm512_castps512_ps256(scaled));
        _mm256_storeu_ps(at + kHalfStride, _mm512_extractf32x8_ps(scaled, 1));
      }
      return;
    }
#endif
    HWY_UNROLL(4) for (int i = 0; i < 4; ++i) {
      const auto number = reinterpret_cast<QuadInts>(words >> 8 * i & 255u) - zero;
      Store(to, (first + i) / kHalves, (first + i) % kHalves, factor * __builtin_convertvector(number, QuadFloats));
    }
  }
};

template <typename T>
HWY_INLINE T LoadAs(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}
HWY_INLINE QuadWords WordsAt(QuadBlocks blocks, int at) {
  return QuadWords{LoadAs<uint32_t>(blocks[0] + at), LoadAs<uint32_t>(blocks[1] + at), LoadAs<uint32_t>(blocks[2] + at),
                   LoadAs<uint32_t>(blocks[3] + at)};
}
// Sets words[i] to WordsAt(blocks, at + 4 * i).
HWY_INLINE void FourWordsAt(QuadBlocks blocks, int at, QuadWords (&words)[4]) {
  const auto a = LoadAs<QuadWords>(blocks[0] + at);
  const auto b = LoadAs<QuadWords>(blocks[1] + at);
  const auto c = LoadAs<QuadWords>(blocks[2] + at);
  const auto e = LoadAs<QuadWords>(blocks[3] + at);
  const QuadWords ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const QuadWords ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const QuadWords ce_low = __builtin_shufflevector(c, e, 0, 4, 1, 5);
  const QuadWords ce_high = __builtin_shufflevector(c, e, 2, 6, 3, 7);
  words[0] = __builtin_shufflevector(ab_low, ce_low, 0, 1, 4, 5);
  words[1] = __builtin_shufflevector(ab_low, ce_low, 2, 3, 6, 7);
  words[2] = __builtin_shufflevector(ab_high, ce_high, 0, 1, 4, 5);
  words[3] = __builtin_shufflevector(ab_high, ce_high, 2, 3, 6, 7);
}
HWY_INLINE QuadWords ShortsAt(QuadBlocks blocks, int at) {
  return QuadWords{LoadAs<uint16_t>(blocks[0] + at), LoadAs<uint16_t>(blocks[1] + at), LoadAs<uint16_t>(blocks[2] + at),
                   LoadAs<uint16_t>(blocks[3] + at)};
}
HWY_INLINE QuadFloats FloatsOf(QuadWords words) {
  return __builtin_convertvector(reinterpret_cast<QuadInts>(words),
                                 QuadFloats);  // below 2^31; signed is one instruction
}

// Returns the float16 numbers in the low halves of `words`.
HWY_INLINE QuadFloats HalvesOf(QuadWords words) {
#if HWY_TARGET == HWY_SCALAR
  QuadFloats floats;
  for (int i = 0; i < kQuad; ++i) {
    const hn::CappedTag<float, 1> d;
    const auto half = hn::BitCast(hn::Rebind<hwy::float16_t, decltype(d)>(),
                                  hn::Set(hn::Rebind<uint16_t, decltype(d)>(), static_cast<uint16_t>(words[i])));
    floats[i] = hn::GetLane(hn::PromoteTo(d, half));
  }
  return floats;
#else
  const hn::FixedTag<float, kQuad> d;
  const hn::FixedTag<int32_t, kQuad> d32;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  uint32_t low[kQuad];
  const QuadWords masked = words & 0xffffu;
  std::memcpy(low, &masked, sizeof(low));
  const auto shorts = hn::DemoteTo(d16, hn::LoadU(d32, reinterpret_cast<const int32_t*>(low)));
  const auto wide = hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, decltype(d)>(), shorts));
  QuadFloats floats;
  float stored[kQuad];
  hn::StoreU(wide, d, stored);
  std::memcpy(&floats, stored, sizeof(floats));
  return floats;
#endif
}

HWY_INLINE CodeVec LoadCodes(const uint8_t* at, int vector) { return hn::LoadU(CodeTag(), at + vector * kCodeLanes); }
// Returns `bytes` shifted right by 0 to 7 bits and masked; the mask must drop what the byte above shifts in.
HWY_INLINE CodeVec ShiftedBits(CodeVec bytes, int shift, uint8_t mask) {
  const CodeTag d;
#if HWY_TARGET == HWY_SCALAR
  return hn::And(hn::ShiftRightSame(bytes, shift), hn::Set(d, mask));
#else
  const hn::Repartition<uint16_t, CodeTag> d16;
  return hn::And(hn::BitCast(d, hn::ShiftRightSame(hn::BitCast(d16, bytes), shift)), hn::Set(d, mask));
#endif
}
// Returns `value` in the lanes whose bit of the run's 32 is set, else 0.
HWY_INLINE CodeVec WhereBit(uint32_t bits, int vector, uint8_t value) {
  const uint64_t own = uint64_t{bits} >> (vector * kCodeLanes);
  return hn::IfThenElseZero(hn::LoadMaskBits(CodeTag(), reinterpret_cast<const uint8_t*>(&own)),
                            hn::Set(CodeTag(), value));
}
// Low halves of 16 bytes, then the high ones.
template <class D = CodeTag>
HWY_INLINE void LoadNibbles(const uint8_t* at, hn::Vec<D> (&codes)[kRunVectors]) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kRunVectors == 1) {
    const hn::Half<D> half;
    const auto bytes = hn::LoadU(half, at);
    codes[0] = hn::Combine(D(), hn::ShiftRight<4>(bytes), hn::And(bytes, hn::Set(half, uint8_t{15})));
    return;
  }
#endif
  constexpr int kHalf = kRunVectors / 2;
  HWY_UNROLL(16) for (int v = 0; v < kHalf; ++v) {
    const CodeVec bytes = LoadCodes(at, v);
    codes[v] = hn::And(bytes, hn::Set(CodeTag(), uint8_t{15}));
    codes[kHalf + v] = hn::ShiftRight<4>(bytes);
  }
}

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
// Two runs' bytes side by side; the second run is the upper half.
HWY_INLINE __m256i Load32(const uint8_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
HWY_INLINE __m512i TwoRuns(__m256i first, __m256i second) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}
HWY_INLINE __m512i Twice(const uint8_t* at) { return _mm512_broadcast_i64x4(Load32(at)); }
HWY_INLINE __m512i MaskedBytes(__m512i bytes, char mask) { return _mm512_and_si512(bytes, _mm512_set1_epi8(mask)); }
// Bits `first` and up of the lower half's bytes and bits `second` and up of the upper half's.
HWY_INLINE __m512i ShiftedRuns(__m512i bytes, int first, int second, char mask) {
  const __m512i shifts =
      TwoRuns(_mm256_set1_epi16(static_cast<short>(first)), _mm256_set1_epi16(static_cast<short>(second)));
  return MaskedBytes(_mm512_srlv_epi16(bytes, shifts), mask);
}
// Adds `value` where bit `first` (lower half) or bit `first` + 1 (upper half) of a byte is set.
HWY_INLINE __m512i AddWhereBit(__m512i codes, __m512i bytes, int first, char value) {
  const __m512i bits =
      TwoRuns(_mm256_set1_epi8(static_cast<char>(1 << first)), _mm256_set1_epi8(static_cast<char>(2 << first)));
  return _mm512_mask_add_epi8(codes, _mm512_test_epi8_mask(bytes, bits), codes, _mm512_set1_epi8(value));
}
HWY_INLINE __m512i PairNibbles(const uint8_t* first, const uint8_t* second) {
  const auto twice = [](const uint8_t* at) HWY_ATTR {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  };
  const __m512i shifts =
      _mm512_setr_epi64(0, 0, 0x0004000400040004, 0x0004000400040004, 0, 0, 0x0004000400040004, 0x0004000400040004);
  return MaskedBytes(_mm512_srlv_epi16(TwoRuns(twice(first), twice(second)), shifts), 15);
}
#endif

template <WeightFormat>
struct Int8Format;

template <>
struct Int8Format<WeightFormat::kQ8_0> {
  static constexpr int kRuns = 1;  // in a block
  static constexpr int kHalves = 1;
  static constexpr bool kHasOffset = false;
  static constexpr int kZero = 128;
  static constexpr int kLargest = 255;
  template <class To>
  static HWY_INLINE void Factors(QuadBlocks blocks, const To& to) {
    to.Store(to.scales, 0, 0, HalvesOf(ShortsAt(blocks, 0)));
  }
  static HWY_INLINE void Codes(const uint8_t* block, int /*run*/, CodeVec (&codes)[kRunVectors]) {
    HWY_UNROLL(32) for (int v = 0; v < kRunVectors; ++v) {
      codes[v] = hn::Xor(LoadCodes(block + 2, v), hn::Set(CodeTag(), uint8_t{128}));
    }
  }
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  static HWY_INLINE __m512i PairCodes(const uint8_t* first, const uint8_t* second) {
    return _mm512_xor_si512(TwoRuns(Load32(first + 2), Load32(second + 2)), _mm512_set1_epi8(-128));
  }
#endif
};

// Q4_0, Q4_1, Q5_0 and Q5_1: d, m, 32 fifth bits and the other four of each weight, as far as the format has them.
template <WeightFormat kFormat>
struct Int8Nibbles {
  static constexpr bool kHasFifth = kFormat == WeightFormat::kQ5_0 || kFormat == WeightFormat::kQ5_1;
  static constexpr int kRuns = 1;
  static constexpr int kHalves = 1;
  static constexpr bool kHasOffset = FactorsAt(kFormat).m >= 0;
  static constexpr int kZero = kHasOffset ? 0 : kHasFifth ? 16 : 8;
  static constexpr int kLargest = kHasFifth ? 31 : 15;
  template <class To>
  static HWY_INLINE void Factors(QuadBlocks blocks, const To& to) {
    const QuadWords words = kHasOffset ? WordsAt(blocks, 0) : ShortsAt(blocks, 0);
    to.Store(to.scales, 0, 0, HalvesOf(words));
    if constexpr (kHasOffset) to.Store(to.offsets, 0, 0, HalvesOf(words >> 16));
  }
  static HWY_INLINE void Codes(const uint8_t* block, int /*run*/, CodeVec (&codes)[kRunVectors]) {
    constexpr int kFifthAt = kHasOffset ? 4 : 2;
    LoadNibbles(block + kFifthAt + (kHasFifth ? 4 : 0), codes);
    if constexpr (kHasFifth) {
      const auto fifth = LoadAs<uint32_t>(block + kFifthAt);
      HWY_UNROLL(32) for (int v = 0; v < kRunVectors; ++v) codes[v] = hn::Or(codes[v], WhereBit(fifth, v, 16));
    }
  }
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  static HWY_INLINE __m512i PairCodes(const uint8_t* first, const uint8_t* second) {
    constexpr int kFifthAt = kHasOffset ? 4 : 2;
    constexpr int kAt = kFifthAt + (kHasFifth ? 4 : 0);
    const __m512i codes = PairNibbles(first + kAt, second + kAt);
    if constexpr (!kHasFifth) return codes;
    const uint64_t fifth = LoadAs<uint32_t>(first + kFifthAt) | uint64_t{LoadAs<uint32_t>(second + kFifthAt)} << 32;
    return _mm512_mask_add_epi8(codes, fifth, codes, _mm512_set1_epi8(16));
  }
#endif
};
template <>
struct Int8Format<WeightFormat::kQ4_0> : Int8Nibbles<WeightFormat::kQ4_0> {};
template <>
struct Int8Format<WeightFormat::kQ4_1> : Int8Nibbles<WeightFormat::kQ4_1> {};
template <>
struct Int8Format<WeightFormat::kQ5_0> : Int8Nibbles<WeightFormat::kQ5_0> {};
template <>
struct Int8Format<WeightFormat::kQ5_1> : Int8Nibbles<WeightFormat::kQ5_1> {};

// Codes of IQ4_NL and IQ4_XS, whose values have a table.
struct Int8Iq4 {
  static constexpr int kHalves = 1;
  static constexpr bool kHasOffset = false;
  static constexpr int kZero = 128;
  static constexpr int kLargest = 241;
  static HWY_INLINE void CodesAt(const uint8_t* at, CodeVec (&codes)[kRunVectors]) {
    LoadNibbles(at, codes);
#if HWY_TARGET == HWY_SCALAR
    for (int v = 0; v < kRunVectors; ++v) {
      codes[v] = hn::Set(CodeTag(), static_cast<uint8_t>(kIq4Values[hn::GetLane(codes[v])] + kZero));
    }
#else
    const CodeTag d;
    const auto values = hn::LoadDup128(d, reinterpret_cast<const uint8_t*>(kIq4Values));
    const CodeVec table = hn::Xor(values, hn::Set(d, uint8_t{kZero}));
    HWY_UNROLL(32) for (int v = 0; v < kRunVectors; ++v) codes[v] = hn::TableLookupBytes(table, codes[v]);
#endif
  }
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  static HWY_INLINE __m512i PairCodesAt(const uint8_t* first, const uint8_t* second) {
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Values));
    const __m512i table = _mm512_xor_si512(_mm512_broadcast_i32x4(values), _mm512_set1_epi8(-128));
    return _mm512_shuffle_epi8(table, PairNibbles(first, second));
  }
#endif
};
template <>
struct Int8Format<WeightFormat::kIQ4_NL> : Int8Iq4 {
  static constexpr int kRuns = 1;
  template <class To>
  static HWY_INLINE void Factors(QuadBlocks blocks, const To& to) {
    to.Store(to.scales, 0, 0, HalvesOf(ShortsAt(blocks, 0)));
  }
  static HWY_INLINE void Codes(const uint8_t* block, int /*run*/, CodeVec (&codes)[kRunVectors]) {
    CodesAt(block + 2, codes);
  }
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  static HWY_INLINE __m512i PairCodes(const uint8_t* first, const uint8_t* second) {
    return PairCodesAt(first + 2, second + 2);
  }
#endif
};
template <>
struct Int8Format<WeightFormat::kIQ4_XS> : Int8Iq4 {
  static constexpr int kRuns = 8;
  template <class To>
  static HWY_INLINE void Factors(QuadBlocks blocks, const To& to) {
    const QuadWords head = WordsAt(blocks, 0);  // d, and the high bits of eight scales
    const QuadWords low = WordsAt(blocks, 4);
    const QuadFloats d = HalvesOf(head);
    HWY_UNROLL(8) for (int run = 0; run < kRuns; ++run) {
      const QuadWords s = (low >> 4 * run & 15u) | (head >> (16 + 2 * run) & 3u) << 4;
      to.Store(to.scales, run, 0, d * FloatsOf(s - 32u));
    }
  }
  static HWY_INLINE void Codes(const uint8_t* block, int run, CodeVec (&codes)[kRunVectors]) {
    CodesAt(block + 8 + 16 * run, codes);
  }
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  static HWY_INLINE __m512i PairCodes(const uint8_t* block, int run) {
    return PairCodesAt(block + 8 + 16 * run, block + 24 + 16 * run);
  }
#endif
};

// Q4_K and Q5_K begin with d and m and 8 pairs of 6-bit numbers in 12 bytes. The first 4 pairs fill six bits of a byte;
// the others have their low 4 bits in own bytes, the high 2 above the first pairs.
struct Int8Pairs {
  static constexpr int kRuns = 8;
  static constexpr int kHalves = 1;
  static constexpr bool kHasOffset = true;
  static constexpr int kZero = 0;
  template <class To>
  static HWY_INLINE void Factors(QuadBlocks blocks, const To& to) {
    QuadWords words[4];  // d and m; then the numbers
    FourWordsAt(blocks, 0, words);
    const QuadWords low = words[1];
    const QuadWords middle = words[2];
    const QuadWords high = words[3];
    const QuadFloats d = HalvesOf(words[0]);
    const QuadFloats m = -HalvesOf(words[0] >> 16);
    To::template StoreBytes<1>(to.scales, 0, d, low & 0x3f3f3f3fu, 0);
    To::template StoreBytes<1>(to.scales, 4, d, (high & 0x0f0f0f0fu) | (low >> 6 & 0x03030303u) << 4, 0);
    To::template StoreBytes<1>(to.offsets, 0, m, middle & 0x3f3f3f3fu, 0);
    To::template StoreBytes<1>(to.offsets, 4, m, (high >> 4 & 0x0f0f0f0fu) | (middle >> 6 & 0x03030303u) << 4, 0);
  }
};
template <>
struct Int8Format<WeightFormat::kQ4_K> : Int8Pairs {
  static constexpr int kLargest = 15;
  static HWY_INLINE void Codes(const uint8_t* block, int run, CodeVec (&codes)[kRunVectors]) {
    HWY_UNROLL(32) for (int v = 0; v < kRunVectors; ++v) {
      codes[v] = ShiftedBits(LoadCodes(block + 16 + run / 2 * 32, v), run % 2 * 4, 15);
    }
  }
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  static HWY_INLINE __m512i PairCodes(const uint8_t* block, int run) {
    return ShiftedRuns(Twice(block + 16 + run * 16), 0, 4, 15);
  }
#endif
};
template <>
struct Int8Format<WeightFormat::kQ5_K> : Int8Pairs {
  static constexpr int kLargest = 31;
  static HWY_INLINE void Codes(const uint8_t* block, int run, CodeVec (&codes)[kRunVectors]) {
    HWY_UNROLL(32) for (int v = 0; v < kRunVectors; ++v) {
      const CodeVec fifth = ShiftedBits(LoadCodes(block + 16, v), run, 1);
      const CodeVec low = ShiftedBits(LoadCodes(block + 48 + run / 2 * 32, v), run % 2 * 4, 15);
      codes[v] = hn::Or(low, hn::ShiftLeft<4>(fifth));
    }
  }
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  static HWY_INLINE __m512i PairCodes(const uint8_t* block, int run) {
    return AddWhereBit(ShiftedRuns(Twice(block + 48 + run * 16), 0, 4, 15), Twice(block + 16), run, 16);
  }
#endif
};

template <>
struct Int8Format<WeightFormat::kQ6_K> {
  static constexpr int kRuns = 8;
  static constexpr int kHalves = 2;
  static constexpr bool kHasOffset = false;
  static constexpr int kZero = 32;
  static constexpr int kLargest = 63;
  template <class To>
  static HWY_INLINE void Factors(QuadBlocks blocks, const To& to) {
    const QuadFloats d = HalvesOf(ShortsAt(blocks, 208));
    QuadWords words[4];
    FourWordsAt(blocks, 192, words);
    HWY_UNROLL(4) for (int word = 0; word < 4; ++word) {  // signed
      To::template StoreBytes<2>(to.scales, 4 * word, d, words[word] ^ 0x80808080u, 128);
    }
  }
  // Two low and two high halves of 64 bytes, with two bits each of 32 more bytes.
  static HWY_INLINE void Codes(const uint8_t* block, int run, CodeVec (&codes)[kRunVectors]) {
    const int group = run / 4;
    const int phase = run % 4;
    HWY_UNROLL(32) for (int v = 0; v < kRunVectors; ++v) {
      const CodeVec low = ShiftedBits(LoadCodes(block + group * 64 + phase % 2 * 32, v), phase / 2 * 4, 15);
      const CodeVec high = ShiftedBits(LoadCodes(block + 128 + group * 32, v), 2 * phase, 3);
      codes[v] = hn::Or(low, hn::ShiftLeft<4>(high));
    }
  }
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  static HWY_INLINE __m512i PairCodes(const uint8_t* block, int run) {
    const int group = run / 4;
    const int phase = run % 4;
    const __m512i bytes = _mm512_loadu_si512(block + group * 64);
    const __m512i low = ShiftedRuns(bytes, phase * 2, phase * 2, 15);
    const __m512i high = ShiftedRuns(Twice(block + 128 + group * 32), 2 * phase, 2 * phase + 2, 3);
    return _mm512_or_si512(low, _mm512_slli_epi16(high, 4));
  }
#endif
};

// Q2_K and Q3_K have 32 bytes for each 128 weights: two bits of 32 neighbours, then of the next 32, in order.
template <>
struct Int8Format<WeightFormat::kQ2_K> {
  static constexpr int kRuns = 8;
  static constexpr int kHalves = 2;
  static constexpr bool kHasOffset = true;
  static constexpr int kZero = 0;
  static constexpr int kLargest = 3;
  template <class To>
  static HWY_INLINE void Factors(QuadBlocks blocks, const To& to) {
    const QuadWords factors = WordsAt(blocks, 80);
    const QuadFloats d = HalvesOf(factors);
    const QuadFloats m = -HalvesOf(factors >> 16);
    QuadWords pairs[4];
    FourWordsAt(blocks, 0, pairs);
    HWY_UNROLL(4) for (int word = 0; word < 4; ++word) {
      To::template StoreBytes<2>(to.scales, 4 * word, d, pairs[word] & 0x0f0f0f0fu, 0);
      To::template StoreBytes<2>(to.offsets, 4 * word, m, pairs[word] >> 4 & 0x0f0f0f0fu, 0);
    }
  }
  static HWY_INLINE void Codes(const uint8_t* block, int run, CodeVec (&codes)[kRunVectors]) {
    HWY_UNROLL(32) for (int v = 0; v < kRunVectors; ++v) {
      codes[v] = ShiftedBits(LoadCodes(block + 16 + run / 4 * 32, v), run % 4 * 2, 3);
    }
  }
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  static HWY_INLINE __m512i PairCodes(const uint8_t* block, int run) {
    const int phase = run % 4;
    return ShiftedRuns(Twice(block + 16 + run / 4 * 32), 2 * phase, 2 * phase + 2, 3);
  }
#endif
};
template <>
struct Int8Format<WeightFormat::kQ3_K> {
  static constexpr int kRuns = 8;
  static constexpr int kHalves = 2;
  static constexpr bool kHasOffset = false;
  static constexpr int kZero = 4;
  static constexpr int kLargest = 7;
  // 8 bytes have low halves of 16 six-bit numbers, and 4 bytes their two high bits.
  template <class To>
  static HWY_INLINE void Factors(QuadBlocks blocks, const To& to) {
    const QuadFloats d = HalvesOf(ShortsAt(blocks, 108));
    const QuadWords low[2] = {WordsAt(blocks, 96), WordsAt(blocks, 100)};
    const QuadWords high = WordsAt(blocks, 104);
    HWY_UNROLL(4) for (int word = 0; word < 4; ++word) {
      const QuadWords numbers = (low[word % 2] >> word / 2 * 4 & 0x0f0f0f0fu) | (high >> 2 * word & 0x03030303u) << 4;
      To::template StoreBytes<2>(to.scales, 4 * word, d, numbers, 32);
    }
  }
  static HWY_INLINE void Codes(const uint8_t* block, int run, CodeVec (&codes)[kRunVectors]) {
    HWY_UNROLL(32) for (int v = 0; v < kRunVectors; ++v) {
      const CodeVec third = ShiftedBits(LoadCodes(block, v), run, 1);
      const CodeVec low = ShiftedBits(LoadCodes(block + 32 + run / 4 * 32, v), run % 4 * 2, 3);
      codes[v] = hn::Or(low, hn::ShiftLeft<2>(third));
    }
  }
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  static HWY_INLINE __m512i PairCodes(const uint8_t* block, int run) {
    const int phase = run % 4;
    return AddWhereBit(ShiftedRuns(Twice(block + 32 + run / 4 * 32), 2 * phase, 2 * phase + 2, 3), Twice(block), run,
                       4);
  }
#endif
};

template <>
struct Int8Format<WeightFormat::kIQ3_S> {
  static constexpr int kRuns = 8;
  static constexpr int kHalves = 1;
  static constexpr bool kHasOffset = false;
  static constexpr int kZero = 16;
  static constexpr int kLargest = 31;
  template <class To>
  static HWY_INLINE void Factors(QuadBlocks blocks, const To& to) {
    const QuadFloats d = HalvesOf(ShortsAt(blocks, 0));
    const QuadWords numbers = WordsAt(blocks, 106);
    HWY_UNROLL(8) for (int run = 0; run < kRuns; ++run) {
      to.Store(to.scales, run, 0, d * FloatsOf((numbers >> 4 * run & 15u) * 2u + 1u));
    }
  }
  static HWY_INLINE void Codes(const uint8_t* block, int run, CodeVec (&codes)[kRunVectors]) {
    const uint8_t* low = block + 2 + 8 * run;
    const uint32_t ninth = block[66 + run];
    alignas(32) uint64_t values[kRun / 8];
    HWY_UNROLL(4) for (int i = 0; i < kRun / 8; ++i) {
      const uint64_t first = kIq3sGrid[low[2 * i] | (ninth >> 2 * i & 1) << 8];
      const uint64_t second = kIq3sGrid[low[2 * i + 1] | (ninth >> (2 * i + 1) & 1) << 8];
      values[i] = first | second << 32;
    }
    const CodeTag d;
    const auto signs = LoadAs<uint32_t>(block + 74 + 4 * run);
    HWY_UNROLL(32) for (int v = 0; v < kRunVectors; ++v) {
      // Complemented, and 1 added to the complement: 16 + ~value + 1 = 16 - value.
      const CodeVec magnitude = LoadCodes(reinterpret_cast<const uint8_t*>(values), v);
      const CodeVec negative = WhereBit(signs, v, 255);
      const CodeVec value = hn::Sub(hn::Xor(magnitude, negative), negative);
      codes[v] = hn::Add(value, hn::Set(d, uint8_t{kZero}));
    }
  }
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  static HWY_INLINE __m512i PairCodes(const uint8_t* block, int run) {
    const __m512i low = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 2 + 8 * run)));
    const __m512i entries = _mm512_mask_add_epi32(low, LoadAs<uint16_t>(block + 66 + run), low, _mm512_set1_epi32(256));
    const __m512i magnitudes = _mm512_i32gather_epi32(entries, kIq3sGrid, 4);
    const __m512i zero = _mm512_set1_epi8(kZero);
    return _mm512_mask_sub_epi8(_mm512_add_epi8(zero, magnitudes), LoadAs<uint64_t>(block + 74 + 4 * run), zero,
                                magnitudes);
  }
#endif
};

template <WeightFormat kFormat>
constexpr int64_t BlockBytes(Int8Format<kFormat>) {
  return BlockOf(kFormat).bytes;
}

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
// Word of a unit of four blocks: place of block `block`'s number `number` (d, then m) among 32 words from the unit's
// start and 32 from `second` on.
template <class Format>
constexpr int FactorWord(int block, int number, int64_t second) {
  const int64_t at = block * BlockBytes(Format()) + 2 * (Format::kHasOffset ? number : 0);
  return static_cast<int>(at < 64 ? at / 2 : 32 + (at - second) / 2);
}

// Factors of four neighbouring blocks of each row, for formats with blocks of one run.
template <class Format, class To>
HWY_INLINE void FourBlockFactors(QuadBlocks blocks, const To& to) {
  constexpr int64_t kSecond = 4 * BlockBytes(Format()) < 128 ? 4 * BlockBytes(Format()) - 64 : 64;
  alignas(64) static constexpr int16_t kWords[32] = {
      FactorWord<Format>(0, 0, kSecond), FactorWord<Format>(1, 0, kSecond), FactorWord<Format>(2, 0, kSecond),
      FactorWord<Format>(3, 0, kSecond), FactorWord<Format>(0, 1, kSecond), FactorWord<Format>(1, 1, kSecond),
      FactorWord<Format>(2, 1, kSecond), FactorWord<Format>(3, 1, kSecond)};
  const __m512i words = _mm512_load_si512(kWords);
  __m128i rows[kQuad];
  HWY_UNROLL(4) for (int r = 0; r < kQuad; ++r) {
    rows[r] = _mm512_castsi512_si128(
        _mm512_permutex2var_epi16(_mm512_loadu_si512(blocks[r]), words, _mm512_loadu_si512(blocks[r] + kSecond)));
  }
  const auto store = [](float* at, __m128i ab, __m128i ce) HWY_ATTR {
    const __m128i first = _mm_unpacklo_epi32(ab, ce);
    const __m128i second = _mm_unpackhi_epi32(ab, ce);
    _mm512_storeu_ps(at, _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1)));
  };
  store(to.scales, _mm_unpacklo_epi16(rows[0], rows[1]), _mm_unpacklo_epi16(rows[2], rows[3]));
  if constexpr (Format::kHasOffset) {
    store(to.offsets, _mm_unpackhi_epi16(rows[0], rows[1]), _mm_unpackhi_epi16(rows[2], rows[3]));
  }
}
#endif

// Returns function(Int8Format<format>()). The format has integer weights.
template <class Function>
HWY_INLINE auto WithInt8Format(WeightFormat format, const Function& function) {
  switch (format) {
    case WeightFormat::kQ4_0:
      return function(Int8Format<WeightFormat::kQ4_0>());
    case WeightFormat::kQ4_1:
      return function(Int8Format<WeightFormat::kQ4_1>());
    case WeightFormat::kQ5_0:
      return function(Int8Format<WeightFormat::kQ5_0>());
    case WeightFormat::kQ5_1:
      return function(Int8Format<WeightFormat::kQ5_1>());
    case WeightFormat::kIQ4_NL:
      return function(Int8Format<WeightFormat::kIQ4_NL>());
    case WeightFormat::kQ2_K:
      return function(Int8Format<WeightFormat::kQ2_K>());
    case WeightFormat::kQ3_K:
      return function(Int8Format<WeightFormat::kQ3_K>());
    case WeightFormat::kQ4_K:
      return function(Int8Format<WeightFormat::kQ4_K>());
    case WeightFormat::kQ5_K:
      return function(Int8Format<WeightFormat::kQ5_K>());
    case WeightFormat::kQ6_K:
      return function(Int8Format<WeightFormat::kQ6_K>());
    case WeightFormat::kIQ4_XS:
      return function(Int8Format<WeightFormat::kIQ4_XS>());
    case WeightFormat::kIQ3_S:
      return function(Int8Format<WeightFormat::kIQ3_S>());
    default:
      return function(Int8Format<WeightFormat::kQ8_0>());
  }
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // GDN_KERNELS_PROJECTION_INT8_WEIGHTS_INL_H_
