// Device code: loads quantised weights in packed_weights_gpu.h's order and decodes them to float32.
//
// A weight is w = fmaf(v, factor, offset) of an integer v, rounded once, as in its format's formula, so the bits are
// equal. In Q8_0, Q4_0, Q5_0 and IQ4_NL, v includes BiasedByte's bias, which the offset removes exactly, because their
// factors have 11 bits; in the other formats v has no bias. Loads and decoding are separate, so that many loads can be
// in flight before the first is used.
// Thread safety: pure functions.
//
//   const PackedRow row = PackedRowOf({data, scales}, planes, output / kPackedRows, output, features);
//   const auto blocks = LoadBlocks<WeightFormat::kQ4_K, 1, false>(row, 3, features);  // features 96 to 127
//   float w[8];  blocks.Decode(0, 1, w);                                              // features 104 to 111
#pragma once

#include <cstdint>

#include "base/weight_format.h"
#include "kernels/gpu/device.h"
#include "kernels/projection/packed_weights_gpu.h"
#include "kernels/projection/projection_args.h"

namespace gdn::gpu {

// Addresses of an output's weights: unit `index` of a plane is at `plane` + (index * kPackedRows + row) * the unit's
// bytes. Everything except `row` belongs to the tile, so the compiler sees which values lanes share.
struct PackedRow {
  const char* tile;          // a tile, of several outputs the first one's
  uint32_t from;             // bytes from there to this output's tile
  uint32_t row;              // row within the tile
  uint32_t high, scales, d;  // offsets of these planes in the tile
  const float* fp8_scales;   // F8_E4M3 only: the matrix's scales
  int64_t first_scale;       // index in them of the row's first scale; a row has one per 128 features

  // Returns the address of this row's unit `index + ahead`, which has `bytes` bytes, of the plane that begins at byte
  // `plane` of the tile. `ahead` is a constant; it costs no instruction.
  __device__ __forceinline__ const char* Unit(uint32_t plane, uint32_t index, uint32_t bytes, int ahead = 0) const {
    return tile + (from + plane + (index * kPackedRows + row) * bytes) + ahead * kPackedRows * static_cast<int>(bytes);
  }
  __device__ __forceinline__ Vec4 Load16(uint32_t plane, uint32_t index, int ahead = 0) const {
    return Load4(reinterpret_cast<const float*>(Unit(plane, index, 16, ahead)));
  }
  // Load one 32-bit word, or two as 64 bits with the first lowest, from this row's unit `index` of the plane that
  // begins at byte `plane` of the tile. A unit has `bytes` bytes; `at` is the byte in it, a multiple of the load's
  // size.
  __device__ __forceinline__ uint32_t LoadWord(uint32_t plane, uint32_t index, uint32_t bytes, uint32_t at = 0) const {
    return *reinterpret_cast<const uint32_t*>(Unit(plane + at, index, bytes));
  }
  __device__ __forceinline__ uint64_t LoadWords(uint32_t plane, uint32_t index, uint32_t bytes, uint32_t at) const {
    return *reinterpret_cast<const uint64_t*>(Unit(plane + at, index, bytes));
  }
  __device__ __forceinline__ float Fp8Scale(uint32_t index) const { return fp8_scales[first_scale + index]; }
  __device__ __forceinline__ uint32_t LoadHalf(uint32_t plane, uint32_t index) const {
    return *reinterpret_cast<const uint16_t*>(Unit(plane, index, 2));
  }
};

struct PackedMatrix {
  const char* tiles;
  const float* fp8_scales;
};

// Returns the row of output `output`, which must exist; `tile` is output / kPackedRows, passed apart because it may be
// uniform. `planes`: PackedPlanesOf of the matrix's format and features.
__device__ __forceinline__ PackedRow PackedRowOf(const PackedMatrix& m, const PackedPlanes& planes, int32_t tile,
                                                 int32_t output, int32_t features) {
  const int32_t first = tile * kPackedRows;
  PackedRow row;
  row.tile = m.tiles + uint64_t{static_cast<uint32_t>(tile)} * planes.bytes;
  row.from = 0;
  row.fp8_scales = m.fp8_scales;
  row.first_scale = first / kFp8Block * Fp8Blocks(int64_t{features});
  row.row = static_cast<uint32_t>(output - first);
  row.high = planes.high;
  row.scales = planes.scales;
  row.d = planes.d;
  return row;
}

// The rows of some neighbouring tiles of a GGUF matrix, of which the first has output `first_output`.
class PackedTiles {
 public:
  __device__ __forceinline__ PackedTiles(const ProjectionMatrix& m, const PackedPlanes& planes, int32_t first_output)
      : planes_(planes), last_((m.outputs - 1) / kPackedRows - first_output / kPackedRows) {
    const auto first = static_cast<uint32_t>(first_output / kPackedRows);
    first_ = static_cast<const char*>(m.weight) + uint64_t{first} * planes.bytes;
  }

  // Returns where tile `tile`, counted from the first, begins, in bytes from there; the last one if it does not exist.
  __device__ __forceinline__ uint32_t From(int32_t tile) const {
    return static_cast<uint32_t>(tile < last_ ? tile : last_) * planes_.bytes;
  }
  // Returns row `row` of the tile that begins at `from`. Rows that do not exist are zeros.
  __device__ __forceinline__ PackedRow Row(uint32_t from, uint32_t row) const {
    PackedRow of{};
    of.tile = first_;
    of.from = from;
    of.row = row;
    of.high = planes_.high;
    of.scales = planes_.scales;
    of.d = planes_.d;
    return of;
  }

 private:
  const PackedPlanes planes_;
  const int32_t last_;
  const char* first_;
};

// Decodes a word's four bytes, the lowest first: w[i] = (kByteBias + byte i) * factor + offset if kBiased, else byte i
// * factor + offset, rounded once.
template <bool kBiased>
__device__ __forceinline__ void DecodeBytes(uint32_t bytes, float factor, float offset, float* w) {
  constexpr float kTaken = kBiased ? 0.0f : kByteBias;
  w[0] = fmaf(BiasedByte<0>(bytes) - kTaken, factor, offset);
  w[1] = fmaf(BiasedByte<1>(bytes) - kTaken, factor, offset);
  w[2] = fmaf(BiasedByte<2>(bytes) - kTaken, factor, offset);
  w[3] = fmaf(BiasedByte<3>(bytes) - kTaken, factor, offset);
}

__device__ __forceinline__ float LowF16(uint32_t word) { return FromF16(static_cast<uint16_t>(word)); }
__device__ __forceinline__ float HighF16(uint32_t word) { return FromF16(static_cast<uint16_t>(word >> 16)); }

// Returns the word rotated left by `by` bits, or right by -`by` if `by` is negative.
__device__ __forceinline__ uint32_t Rotated(uint32_t word, int by) { return word << (by & 31) | word >> (-by & 31); }

// True for formats with a byte for each weight in plane q.
constexpr bool HasByteWeights(WeightFormat format) {
  return format == WeightFormat::kQ8_0 || format == WeightFormat::kF8E4M3;
}
// Returns the bits of a weight in plane q, and those in plane high.
constexpr int LowBits(WeightFormat format) {
  if (HasByteWeights(format)) return 8;
  return format == WeightFormat::kQ2_K || format == WeightFormat::kQ3_K ? 2 : 4;
}
constexpr int HighBits(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ5_0:
    case WeightFormat::kQ5_1:
    case WeightFormat::kQ3_K:
    case WeightFormat::kQ5_K:
      return 1;
    default:
      return format == WeightFormat::kQ6_K ? 2 : 0;
  }
}

// Raw bits of eight neighbouring weights. `q`: the first four if they have 8 bits. With 4 bits, byte i has weight i in
// its low half, weight i + 4 in its high half; with 2 bits in bits 0 and 1, and in bits 2 and 3; other bits are
// arbitrary. `more`: with 8 bits the other four; otherwise the bits above `q`, those of the first four weights from bit
// LowBits of each byte on, then those of the others.
struct PackedEight {
  uint32_t q;
  uint32_t more;
};

// Makes the raw bits of eight weights, number `eight` of 32, from the words that have them. `more`: with 8 bits the
// second word, otherwise the word of plane high.
template <WeightFormat kFormat>
__device__ __forceinline__ PackedEight EightOf(uint32_t q, uint32_t more, int eight) {
  constexpr int kLow = LowBits(kFormat);
  if constexpr (kLow == 2) q >>= eight % 2 * 4;
  if constexpr (HighBits(kFormat) == 1) more = Rotated(more, kLow - eight * 2);
  if constexpr (HighBits(kFormat) == 2) more = Rotated(more, kLow - eight % 2 * 4);
  return {q, more};
}

// The words that have the scales of 64 neighbouring weights, as LoadScales loads and a PackedDecoder reads them.
struct ScaleWords {
  uint32_t w[4];
};

// Loads the scales of the row's 64 weights around weights [32 block32, 32 block32 + 32). Q8_0, Q4_0, Q5_0, IQ4_NL: both
// d. Q4_1, Q5_1: (d, m) of either block. F8_E4M3: the scale. Q2_K: four (s, t), then d and m. Q3_K: low and high bits
// of s, then d. Q4_K, Q5_K: the 16 bytes of 256 weights. Q6_K: four s, then d. IQ4_XS, IQ3_S: the 8 bytes of 256.
template <WeightFormat kFormat>
__device__ __forceinline__ ScaleWords LoadScales(const PackedRow& row, uint32_t block32) {
  ScaleWords s{};
  if constexpr (kFormat == WeightFormat::kF8E4M3) {
    s.w[0] = FloatToBits(row.Fp8Scale(block32 / 4));
  } else if constexpr (kFormat == WeightFormat::kQ4_1 || kFormat == WeightFormat::kQ5_1) {
    const uint64_t pairs = row.LoadWords(row.d, block32 / 2, 8, 0);
    s.w[0] = static_cast<uint32_t>(pairs);
    s.w[1] = static_cast<uint32_t>(pairs >> 32);
  } else if constexpr (kFormat == WeightFormat::kQ2_K) {
    s.w[0] = row.LoadWord(row.scales, block32 / 2, 4);
    s.w[1] = row.LoadWord(row.d, block32 / 8, 4);
  } else if constexpr (kFormat == WeightFormat::kQ3_K) {
    s.w[0] = row.LoadWord(row.scales, block32 / 8, 12, block32 / 4 % 2 * 4);
    s.w[1] = row.LoadWord(row.scales, block32 / 8, 12, 8);
    s.w[2] = row.LoadHalf(row.d, block32 / 8);
  } else if constexpr (kFormat == WeightFormat::kQ4_K || kFormat == WeightFormat::kQ5_K) {
    const Vec4 words = row.Load16(row.scales, block32 / 8);
    s = {{FloatToBits(words.x), FloatToBits(words.y), FloatToBits(words.z), FloatToBits(words.w)}};
  } else if constexpr (kFormat == WeightFormat::kQ6_K) {
    s.w[0] = row.LoadWord(row.scales, block32 / 2, 4);
    s.w[1] = row.LoadHalf(row.d, block32 / 8);
  } else if constexpr (kFormat == WeightFormat::kIQ4_XS || kFormat == WeightFormat::kIQ3_S) {
    const uint64_t words = row.LoadWords(row.scales, block32 / 8, 8, 0);
    s.w[0] = static_cast<uint32_t>(words);
    s.w[1] = static_cast<uint32_t>(words >> 32);
  } else {
    s.w[0] = row.LoadWord(row.d, block32 / 2, 4);
  }
  return s;
}

// Names the eight weights that a scale is for. `group`: number of their 64 weights in the row, of which only the last
// two bits matter. `second`: 0 if they are among the first 32 of the 64, else 1. `eight`: number of the eight among the
// 32, 0 to 3.
struct EightPlace {
  int32_t group;
  int32_t second;
  int32_t eight;

  // Returns which 16 of the 64 weights they are in, 0 to 3.
  __device__ __forceinline__ int32_t sixteen() const { return 2 * second + eight / 2; }
};

// Decodes the weights of one format, eight at a time. Of makes a Scale, which the eight weights share. Decode writes
// the weights to w in order.
template <WeightFormat kFormat>
struct PackedDecoder;

// The Scale of most decoders: w = v * factor + offset.
struct FactorAndOffset {
  float factor, offset;
};

// Returns the float16 factor of the block of 32 in a word with those of two.
__device__ __forceinline__ float HalfOf(const ScaleWords& s, const EightPlace& at) {
  return LowF16(s.w[0] >> (16 * at.second));
}
// Returns the word of (d, m) of the block of 32.
__device__ __forceinline__ uint32_t PairOf(const ScaleWords& s, const EightPlace& at) {
  return at.second != 0 ? s.w[1] : s.w[0];
}

// Puts the low and high bits of each weight together: the first four weights in the bytes of `first`, the others in
// those of `second`.
template <WeightFormat kFormat>
__device__ __forceinline__ void JoinBits(const PackedEight& eight, uint32_t& first, uint32_t& second) {
  constexpr int kLow = LowBits(kFormat);
  constexpr uint32_t kLowMask = kLow == 2 ? 0x03030303u : 0x0f0f0f0fu;
  first = eight.q & kLowMask;
  second = (eight.q >> kLow) & kLowMask;
  if constexpr (HighBits(kFormat) > 0) {
    constexpr uint32_t kHighMask = (HighBits(kFormat) == 1 ? 0x01010101u : 0x03030303u) << kLow;
    first |= eight.more & kHighMask;
    second |= (eight.more >> HighBits(kFormat)) & kHighMask;
  }
}
template <WeightFormat kFormat, bool kBiased>
__device__ __forceinline__ void DecodeJoined(const PackedEight& eight, const FactorAndOffset& scale, float* w) {
  uint32_t first, second;
  JoinBits<kFormat>(eight, first, second);
  DecodeBytes<kBiased>(first, scale.factor, scale.offset, w);
  DecodeBytes<kBiased>(second, scale.factor, scale.offset, w + 4);
}
// Decodes weights of four bits without a bias. The high halves are not shifted: they count as 16 times their values.
__device__ __forceinline__ void DecodeHalves(const PackedEight& eight, const FactorAndOffset& scale, float* w) {
  DecodeBytes<false>(eight.q & 0x0f0f0f0fu, scale.factor, scale.offset, w);
  DecodeBytes<false>(eight.q & 0xf0f0f0f0u, scale.factor * 0.0625f, scale.offset, w + 4);
}

template <>
struct PackedDecoder<WeightFormat::kQ8_0> {
  using Scale = FactorAndOffset;
  __device__ __forceinline__ static Scale Of(const ScaleWords& s, const EightPlace& at) {
    const float d = HalfOf(s, at);
    return {d, -(kByteBias + 128.0f) * d};
  }
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    DecodeBytes<true>(eight.q, scale.factor, scale.offset, w);
    DecodeBytes<true>(eight.more, scale.factor, scale.offset, w + 4);
  }
};

// Decodes Q4_0. High nibbles are not shifted: they count as 16 times their values, so they have a factor and offset of
// their own.
template <>
struct PackedDecoder<WeightFormat::kQ4_0> {
  struct Scale {
    float factor, offset, high_factor, high_offset;
  };
  __device__ __forceinline__ static Scale Of(const ScaleWords& s, const EightPlace& at) {
    const float d = HalfOf(s, at);
    const float high = d * 0.0625f;
    return {d, -(kByteBias + 8.0f) * d, high, -(kByteBias + 128.0f) * high};
  }
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    DecodeBytes<true>(eight.q & 0x0f0f0f0fu, scale.factor, scale.offset, w);
    DecodeBytes<true>(eight.q & 0xf0f0f0f0u, scale.high_factor, scale.high_offset, w + 4);
  }
};

template <>
struct PackedDecoder<WeightFormat::kQ4_1> {
  using Scale = FactorAndOffset;
  __device__ __forceinline__ static Scale Of(const ScaleWords& s, const EightPlace& at) {
    const uint32_t pair = PairOf(s, at);
    return {LowF16(pair), HighF16(pair)};
  }
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    DecodeHalves(eight, scale, w);
  }
};

template <>
struct PackedDecoder<WeightFormat::kQ5_0> {
  using Scale = FactorAndOffset;
  __device__ __forceinline__ static Scale Of(const ScaleWords& s, const EightPlace& at) {
    const float d = HalfOf(s, at);
    return {d, -(kByteBias + 16.0f) * d};
  }
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    DecodeJoined<WeightFormat::kQ5_0, true>(eight, scale, w);
  }
};

template <>
struct PackedDecoder<WeightFormat::kQ5_1> {
  using Scale = FactorAndOffset;
  __device__ __forceinline__ static Scale Of(const ScaleWords& s, const EightPlace& at) {
    return PackedDecoder<WeightFormat::kQ4_1>::Of(s, at);
  }
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    DecodeJoined<WeightFormat::kQ5_1, false>(eight, scale, w);
  }
};

// Returns four entries of kIq4Values plus `added`, 0 or 128, as bytes, the first lowest.
constexpr uint32_t Iq4Word(int first, int added) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= static_cast<uint32_t>((kIq4Values[first + i] + added) & 0xff) << 8 * i;
  return word;
}
// Returns kIq4Values plus kAdded of four bytes of indices from 0 to 15.
template <int kAdded>
__device__ __forceinline__ uint32_t Iq4Bytes(uint32_t indices) {
  constexpr uint32_t k0 = Iq4Word(0, kAdded), k4 = Iq4Word(4, kAdded), k8 = Iq4Word(8, kAdded),
                     k12 = Iq4Word(12, kAdded);
  const uint32_t of_eight = indices & 0x07070707u;
  const uint32_t below = SelectBytes(k0, k4, of_eight);
  const uint32_t above = SelectBytes(k8, k12, of_eight);
  return SelectBytes(below, above, ((indices & 0x08080808u) >> 1) | 0x03020100u);
}
template <bool kBiased>
__device__ __forceinline__ void DecodeIq4(const PackedEight& eight, const FactorAndOffset& scale, float* w) {
  DecodeBytes<kBiased>(Iq4Bytes<128>(eight.q & 0x0f0f0f0fu), scale.factor, scale.offset, w);
  DecodeBytes<kBiased>(Iq4Bytes<128>((eight.q >> 4) & 0x0f0f0f0fu), scale.factor, scale.offset, w + 4);
}

template <>
struct PackedDecoder<WeightFormat::kIQ4_NL> {
  using Scale = FactorAndOffset;
  __device__ __forceinline__ static Scale Of(const ScaleWords& s, const EightPlace& at) {
    return PackedDecoder<WeightFormat::kQ8_0>::Of(s, at);
  }
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    DecodeIq4<true>(eight, scale, w);
  }
};

template <>
struct PackedDecoder<WeightFormat::kIQ4_XS> {
  using Scale = FactorAndOffset;
  __device__ __forceinline__ static Scale Of(const ScaleWords& s, const EightPlace& at) {
    const int32_t run = (at.group & 3) * 2 + at.second;
    const uint32_t number = (s.w[1] >> (4 * run) & 15u) | (s.w[0] >> (16 + 2 * run) & 3u) << 4;
    const float factor = LowF16(s.w[0]) * (static_cast<float>(number) - 32.0f);
    return {factor, -128.0f * factor};
  }
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    DecodeIq4<false>(eight, scale, w);
  }
};

// Decodes IQ3_S, whose q is (v + 15) / 2.
template <>
struct PackedDecoder<WeightFormat::kIQ3_S> {
  using Scale = FactorAndOffset;
  __device__ __forceinline__ static Scale Of(const ScaleWords& s, const EightPlace& at) {
    const int32_t run = (at.group & 3) * 2 + at.second;
    const float factor = LowF16(s.w[0]) * (2.0f * static_cast<float>(s.w[1] >> (4 * run) & 15u) + 1.0f);
    return {2.0f * factor, -15.0f * factor};
  }
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    DecodeHalves(eight, scale, w);
  }
};

template <>
struct PackedDecoder<WeightFormat::kQ2_K> {
  using Scale = FactorAndOffset;
  __device__ __forceinline__ static Scale Of(const ScaleWords& s, const EightPlace& at) {
    const uint32_t pair = s.w[0] >> (8 * at.sixteen());
    return {LowF16(s.w[1]) * static_cast<float>(pair & 15u), -(HighF16(s.w[1]) * static_cast<float>(pair >> 4 & 15u))};
  }
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    DecodeJoined<WeightFormat::kQ2_K, false>(eight, scale, w);
  }
};

template <>
struct PackedDecoder<WeightFormat::kQ3_K> {
  using Scale = FactorAndOffset;
  __device__ __forceinline__ static Scale Of(const ScaleWords& s, const EightPlace& at) {
    const uint32_t low = s.w[0] >> (16 * (at.group & 1) + 4 * at.sixteen()) & 15u;
    const uint32_t high = s.w[1] >> (8 * (at.group & 3) + 2 * at.sixteen()) & 3u;
    const float factor = LowF16(s.w[2]) * (static_cast<float>(low | high << 4) - 32.0f);
    return {factor, -4.0f * factor};
  }
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    DecodeJoined<WeightFormat::kQ3_K, false>(eight, scale, w);
  }
};

template <>
struct PackedDecoder<WeightFormat::kQ4_K> {
  using Scale = FactorAndOffset;
  __device__ __forceinline__ static Scale Of(const ScaleWords& words, const EightPlace& at) {
    // (s, t, s, t) of the 64 weights are 24 bits, from bit 24 * group on, of words 1 to 3.
    const bool second_half = (at.group & 2) != 0;
    const uint32_t low = second_half ? words.w[2] : words.w[1];
    const uint32_t high = second_half ? words.w[3] : words.w[2];
    const int32_t shift = (at.group & 3) * 24 - (second_half ? 32 : 0);
    const uint32_t bits = static_cast<uint32_t>((uint64_t{high} << 32 | low) >> shift);
    const uint32_t pair = bits >> (12 * at.second);
    const float s = static_cast<float>(pair & 63u);
    const float t = static_cast<float>((pair >> 6) & 63u);
    return {LowF16(words.w[0]) * s, -(HighF16(words.w[0]) * t)};
  }
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    DecodeHalves(eight, scale, w);
  }
};

template <>
struct PackedDecoder<WeightFormat::kQ5_K> : PackedDecoder<WeightFormat::kQ4_K> {
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    DecodeJoined<WeightFormat::kQ5_K, false>(eight, scale, w);
  }
};

template <>
struct PackedDecoder<WeightFormat::kQ6_K> {
  using Scale = FactorAndOffset;
  __device__ __forceinline__ static Scale Of(const ScaleWords& s, const EightPlace& at) {
    const float factor = LowF16(s.w[1]) * static_cast<float>(static_cast<int8_t>(s.w[0] >> (8 * at.sixteen())));
    return {factor, -32.0f * factor};
  }
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    DecodeJoined<WeightFormat::kQ6_K, false>(eight, scale, w);
  }
};

template <>
struct PackedDecoder<WeightFormat::kF8E4M3> {
  struct Scale {
    float factor;
  };
  __device__ __forceinline__ static Scale Of(const ScaleWords& s, const EightPlace& /*at*/) {
    return {BitsToFloat(s.w[0]) * kE4M3Unit};
  }
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float values[4];
      WidenE4M3(i == 0 ? eight.q : eight.more, values);
#pragma unroll
      for (int j = 0; j < 4; ++j) w[4 * i + j] = values[j] * scale.factor;
    }
  }
};

__device__ __forceinline__ void UnpackBits(const Vec4& unit, uint32_t* words) {
  words[0] = FloatToBits(unit.x);
  words[1] = FloatToBits(unit.y);
  words[2] = FloatToBits(unit.z);
  words[3] = FloatToBits(unit.w);
}

// Loads the words of kBlocks blocks of 32 weights, from block block32 on, of a plane whose unit is `bytes` bytes, 8 or
// 16, for 64 weights. If kBlocks is 2, block32 must be even.
template <int kBlocks>
__device__ __forceinline__ void LoadPairWords(const PackedRow& row, uint32_t plane, uint32_t bytes, uint32_t block32,
                                              uint32_t* words) {
  if (kBlocks == 2 && bytes == 16) {
    UnpackBits(row.Load16(plane, block32 / 2), words);
  } else if (kBlocks == 1 && bytes == 8) {
    words[0] = row.LoadWord(plane, block32 / 2, 8, 4 * (block32 % 2));
  } else {
    const uint64_t both = row.LoadWords(plane, block32 / 2, bytes, kBlocks == 2 ? 0 : 8 * (block32 % 2));
    words[0] = static_cast<uint32_t>(both);
    words[1] = static_cast<uint32_t>(both >> 32);
  }
}

// Raw bits of 32 or 64 neighbouring weights of an output, from LoadBlocks; kBlocks: number of blocks of 32, 1 or 2.
template <WeightFormat kFormat, int kBlocks>
struct PackedBlocks {
  static constexpr bool kBytes = HasByteWeights(kFormat);
  static constexpr int kWords = LowBits(kFormat);              // of q per block
  static constexpr int kHighWords = HighBits(kFormat);         // of high per block
  static constexpr int kUnits = kWords >= 4 ? kWords / 4 : 1;  // loads of q per block, or for 2 bits in all

  uint32_t q[kBlocks * kWords];
  uint32_t high[kHighWords > 0 ? kBlocks* kHighWords : 1];
  ScaleWords scales;
  int32_t odd;    // 1 if the first block is the second half of its 64 weights, else 0
  int32_t group;  // number of these 64 weights in the row

  // Names weights [8 j, 8 j + 8), j < 4, of block b < kBlocks, and returns their raw bits. Here and below b and j must
  // be constants.
  __device__ __forceinline__ EightPlace PlaceOf(int b, int j) const { return {group, kBlocks == 2 ? b : odd, j}; }
  __device__ __forceinline__ PackedEight Eight(int b, int j) const {
    const uint32_t low = q[b * kWords + j * kWords / 4];
    uint32_t more = 0;
    if constexpr (kBytes) more = q[b * kWords + 2 * j + 1];
    if constexpr (kHighWords > 0) more = high[b * kHighWords + j * kHighWords / 4];
    return EightOf<kFormat>(low, more, j);
  }
  // Decodes these weights into w in order.
  __device__ __forceinline__ void Decode(int b, int j, float (&w)[8]) const {
    using Decoder = PackedDecoder<kFormat>;
    Decoder::Decode(Eight(b, j), Decoder::Of(scales, PlaceOf(b, j)), w);
  }
};

// Loads the row's weights [32 index, 32 (index + kBlocks)); index is a multiple of kBlocks. Weights past the last of
// `features` are replaced by others of the row, so that lanes load without a check; the caller multiplies them by 0.
// kWhole: there are none, and features is a multiple of 64.
template <WeightFormat kFormat, int kBlocks, bool kWhole>
__device__ __forceinline__ PackedBlocks<kFormat, kBlocks> LoadBlocks(const PackedRow& row, int32_t index,
                                                                     int32_t features) {
  using Blocks = PackedBlocks<kFormat, kBlocks>;
  const auto within = [](int32_t unit, int32_t units) {
    return static_cast<uint32_t>(kWhole || unit < units ? unit : units - 1);
  };
  const uint32_t block32 = within(index, (features + 31) / 32);
  Blocks blocks;
  blocks.odd = index % 2;
  blocks.group = static_cast<int32_t>(block32 / 2);
  if constexpr (Blocks::kWords == 2) {
    LoadPairWords<kBlocks>(row, 0, 16, block32, blocks.q);
  } else {
    constexpr int kUnitFeatures = 32 / Blocks::kUnits;
    const int32_t first = index * Blocks::kUnits;
    const int32_t units = (features + kUnitFeatures - 1) / kUnitFeatures;
#pragma unroll
    for (int i = 0; i < kBlocks * Blocks::kUnits; ++i) {
      const Vec4 unit =
          kWhole ? row.Load16(0, static_cast<uint32_t>(first), i) : row.Load16(0, within(first + i, units));
      UnpackBits(unit, blocks.q + 4 * i);
    }
  }
  if constexpr (Blocks::kHighWords > 0) {
    LoadPairWords<kBlocks>(row, row.high, 8 * Blocks::kHighWords, block32, blocks.high);
  }
  blocks.scales = LoadScales<kFormat>(row, block32);
  return blocks;
}

}  // namespace gdn::gpu
