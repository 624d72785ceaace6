// SIMD decoders of quantised weights: 32 neighbouring weights of a row at a time, in registers, with the same bits as
// base/weight_format.h's decoder if the factors are finite. Included once per Highway target, so the guard toggles.
//
// This file has the formats in blocks of 32 and F8_E4M3; quantized_blocks256-inl.h has those in blocks of 256. A format
// divides its block into kGroups groups of kPhases times 32 weights; each phase has its own code. PrepareBlocks reads
// the data that a block's weights share, once per block, for up to four rows at a time.
//
//   using F = QuantizedFormat<WeightFormat::kQ5_0>;
//   F::Shared shared[1];
//   PrepareBlocks<F>({block}, {scale}, shared);
//   for (int group = 0; group < F::kGroups; ++group) F::template Decode<0>(block, shared[0], group, w);  // phase 0
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
#include "kernels/projection/float_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Loads of a block's bytes into lanes in memory order. No load reads past the bytes that its name
// says, because a matrix may end where its file's mapping ends.
using ByteTag = hn::Rebind<uint8_t, FloatTag>;
using ByteVec = hn::Vec<ByteTag>;

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

// Decodes Q4_0, Q4_1, Q5_0 and Q5_1: d, m, 32 fifth bits and the other four of each weight, as far as the format has
// them.
template <WeightFormat kFormat>
struct NibbleFormat {
  static constexpr int kGroups = 1;
  static constexpr int kPhases = 1;
  static constexpr bool kHasMinimum = FactorsAt(kFormat).m >= 0;
  static constexpr bool kHasFifth = kFormat == WeightFormat::kQ5_0 || kFormat == WeightFormat::kQ5_1;
  static constexpr int kFifthAt = kHasMinimum ? 4 : 2;
  struct Shared {};
  static HWY_INLINE Shared Prepare(const uint8_t* /*block*/, const float* /*scale*/) { return {}; }
  template <int kPhase>
  static HWY_INLINE void Decode(const uint8_t* block, const Shared& /*shared*/, int /*group*/, FloatVec* w) {
    const FloatTag d;
    const FloatVec scale = BroadcastHalf(block);
    const FloatVec minimum =
        kHasMinimum ? hn::Neg(BroadcastHalf(block + 2)) : hn::Mul(scale, hn::Set(d, kHasFifth ? 16.0f : 8.0f));
    HWY_UNROLL(16) for (int v = 0; v < kChunkVectors / 2; ++v) {
      const uint8_t* at = block + kFifthAt + (kHasFifth ? 4 : 0) + v * kFloatLanes;
      constexpr int kHalf = kChunkVectors / 2;
      if constexpr (kHasFifth) {
        const IntVec low = hn::And(LoadShifted<0>(at), hn::Set(IntTag(), 15));
        w[v] = WithFifth(scale, minimum, low, block, v);
        w[kHalf + v] = WithFifth(scale, minimum, LoadShifted<4>(at), block, kHalf + v);
      } else {
        w[v] = ScaledNibbles(scale, minimum, LoadShifted<0>(at));
        w[kHalf + v] = ScaledNibbles(scale, minimum, LoadShifted<4>(at));
      }
    }
  }

 private:
  // Returns the weights of vector `v` of the block; `low` has the low four bits.
  static HWY_INLINE FloatVec WithFifth(FloatVec scale, FloatVec minimum, IntVec low, const uint8_t* block, int v) {
    const IntTag di;
    uint32_t bits;
    std::memcpy(&bits, block + kFifthAt, sizeof(bits));
    const IntVec all = hn::Set(di, static_cast<int32_t>(bits >> (v * kFloatLanes)));
    const IntVec own = hn::Shl(hn::Set(di, 1), hn::Iota(di, 0));
    const IntVec q = hn::Or(low, hn::IfThenElseZero(hn::TestBit(all, own), hn::Set(di, 16)));
    return hn::MulSub(scale, hn::ConvertTo(FloatTag(), q), minimum);
  }
};
template <>
struct QuantizedFormat<WeightFormat::kQ4_0> : NibbleFormat<WeightFormat::kQ4_0> {};
template <>
struct QuantizedFormat<WeightFormat::kQ4_1> : NibbleFormat<WeightFormat::kQ4_1> {};
template <>
struct QuantizedFormat<WeightFormat::kQ5_0> : NibbleFormat<WeightFormat::kQ5_0> {};
template <>
struct QuantizedFormat<WeightFormat::kQ5_1> : NibbleFormat<WeightFormat::kQ5_1> {};

// Writes to w `scale` times the 32 values of IQ4_NL or IQ4_XS whose indices are the low halves of the 16 bytes at `at`
// and then the high ones.
HWY_INLINE void DecodeIq4(FloatVec scale, const uint8_t* at, FloatVec* w) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const hn::Rebind<int8_t, FloatTag> d8;
  const FloatVec values = hn::ConvertTo(FloatTag(), hn::PromoteTo(IntTag(), hn::LoadU(d8, kIq4Values)));
  w[0] = hn::Mul(scale, hn::TableLookupLanes(values, hn::Indices512<float>{LoadShifted<0>(at).raw}));
  w[1] = hn::Mul(scale, hn::TableLookupLanes(values, hn::Indices512<float>{LoadShifted<4>(at).raw}));
#else
  alignas(64) uint8_t values[kChunk];
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 16; ++i) {
    values[i] = static_cast<uint8_t>(kIq4Values[at[i] & 15]);
    values[16 + i] = static_cast<uint8_t>(kIq4Values[at[i] >> 4]);
  }
#else
  const hn::FixedTag<uint8_t, 16> d8;
  const auto table = hn::LoadU(d8, reinterpret_cast<const uint8_t*>(kIq4Values));
  const auto bytes = hn::LoadU(d8, at);
  hn::Store(hn::TableLookupBytes(table, hn::And(bytes, hn::Set(d8, uint8_t{15}))), d8, values);
  hn::Store(hn::TableLookupBytes(table, hn::ShiftRight<4>(bytes)), d8, values + 16);
#endif
  HWY_UNROLL(32) for (int v = 0; v < kChunkVectors; ++v) w[v] = ScaledBytes(scale, values + v * kFloatLanes);
#endif
}

template <>
struct QuantizedFormat<WeightFormat::kIQ4_NL> {
  static constexpr int kGroups = 1;
  static constexpr int kPhases = 1;
  struct Shared {};
  static HWY_INLINE Shared Prepare(const uint8_t* /*block*/, const float* /*scale*/) { return {}; }
  template <int kPhase>
  static HWY_INLINE void Decode(const uint8_t* block, const Shared& /*shared*/, int /*group*/, FloatVec* w) {
    DecodeIq4(BroadcastHalf(block), block + 2, w);
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
  if constexpr (requires { Format::Shared::Of(blocks, shared); }) {
    Format::Shared::Of(blocks, shared);
  } else {
    HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) shared[r] = Format::Prepare(blocks[r], scales[r]);
  }
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // GDN_KERNELS_PROJECTION_QUANTIZED_WEIGHTS_INL_H_
