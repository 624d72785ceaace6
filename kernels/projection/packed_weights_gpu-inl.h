// Device code: loads quantised weights in packed_weights_gpu.h's order and decodes them to float32.
//
// A weight is w = fmaf(v, factor, offset) of an integer v, rounded once, as in its format's formula, so the bits are
// equal. In Q8_0 and Q4_0, v includes BiasedByte's bias, which the offset removes exactly, because their factors have
// 11 bits; in the other formats v has no bias. Loads and decoding are separate, so that many loads can be in flight
// before the first is used.
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
  const char* tile;
  uint32_t row;              // row within the tile
  uint32_t high, scales, d;  // offsets of these planes in the tile
  const float* fp8_scales;   // F8_E4M3 only: the matrix's scales
  int64_t first_scale;       // index in them of the row's first scale; a row has one per 128 features

  // Returns the address of this row's unit `index + ahead`, which has `bytes` bytes, of the plane that begins at byte
  // `plane` of the tile. `ahead` is a constant; it costs no instruction.
  __device__ __forceinline__ const char* Unit(uint32_t plane, uint32_t index, uint32_t bytes, int ahead = 0) const {
    return tile + (plane + (index * kPackedRows + row) * bytes) + ahead * kPackedRows * static_cast<int>(bytes);
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
  row.fp8_scales = m.fp8_scales;
  row.first_scale = first / kFp8Block * Fp8Blocks(int64_t{features});
  row.row = static_cast<uint32_t>(output - first);
  row.high = planes.high;
  row.scales = planes.scales;
  row.d = planes.d;
  return row;
}

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

// Raw bits of eight neighbouring weights. `q`: the first four if they have 8 bits. Otherwise the low 4 bits of all
// eight: byte i has weight i in its low half, weight i + 4 in its high half. `more`: with 8 bits the other four;
// otherwise the bits above `q`, those of the first four weights from bit 4 of each byte on, then those of the others.
struct PackedEight {
  uint32_t q;
  uint32_t more;
};

template <WeightFormat kFormat>
struct PackedDecoder;

// A PackedDecoder decodes the weights of one format, here Q8_0. Scale is data that several weights share. Of makes a
// Scale from the bits in memory; d is the block's factor. Decode writes eight weights to w in order.
template <>
struct PackedDecoder<WeightFormat::kQ8_0> {
  struct Scale {
    float factor, offset;
  };
  __device__ __forceinline__ static Scale Of(float d) { return {d, -(kByteBias + 128.0f) * d}; }
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    DecodeBytes<true>(eight.q, scale.factor, scale.offset, w);
    DecodeBytes<true>(eight.more, scale.factor, scale.offset, w + 4);
  }
};

// Decodes Q4_0; d is the block's factor. High nibbles are not shifted: they count as 16 times their values, so they
// have a factor and offset of their own.
template <>
struct PackedDecoder<WeightFormat::kQ4_0> {
  struct Scale {
    float factor, offset, high_factor, high_offset;
  };
  __device__ __forceinline__ static Scale Of(float d) {
    const float high = d * 0.0625f;
    return {d, -(kByteBias + 8.0f) * d, high, -(kByteBias + 128.0f) * high};
  }
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    DecodeBytes<true>(eight.q & 0x0f0f0f0fu, scale.factor, scale.offset, w);
    DecodeBytes<true>(eight.q & 0xf0f0f0f0u, scale.high_factor, scale.high_offset, w + 4);
  }
};

// Returns the scales of 64 features of a Q4_K or Q5_K block: (s, t, s, t) of six bits each, the first lowest; the bits
// above them are arbitrary. `words`: the block's 16-byte unit of plane s. `group`: number of these 64 features, of
// which only the last two bits matter.
__device__ __forceinline__ uint32_t ScaleBits(const Vec4& words, int32_t group) {
  // These are 24 bits, from bit 24 * group on, of words 1 to 3.
  const bool second_half = (group & 2) != 0;
  const uint32_t low = FloatToBits(second_half ? words.z : words.y);
  const uint32_t high = FloatToBits(second_half ? words.w : words.z);
  const int32_t shift = (group & 3) * 24 - (second_half ? 32 : 0);
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> shift);
}

template <>
struct PackedDecoder<WeightFormat::kQ4_K> {
  struct Scale {
    float factor, offset;
  };
  // Makes the Scale of 32 weights. `d_and_m`: the block's float16 factors, d in the low half; `bits`: ScaleBits' result
  // for 64 features; `half`: 0 for the first 32 of these, else 1.
  __device__ __forceinline__ static Scale Of(uint32_t d_and_m, uint32_t bits, int half) {
    const uint32_t pair = bits >> (12 * half);
    const float s = static_cast<float>(pair & 63u);
    const float t = static_cast<float>((pair >> 6) & 63u);
    return {LowF16(d_and_m) * s, -(HighF16(d_and_m) * t)};
  }
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    DecodeBytes<false>(eight.q & 0x0f0f0f0fu, scale.factor, scale.offset, w);
    DecodeBytes<false>(eight.q & 0xf0f0f0f0u, scale.factor * 0.0625f, scale.offset, w + 4);
  }
};

template <>
struct PackedDecoder<WeightFormat::kQ5_K> : PackedDecoder<WeightFormat::kQ4_K> {
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    const uint32_t low = (eight.q & 0x0f0f0f0fu) | (eight.more & 0x10101010u);
    const uint32_t high = ((eight.q >> 4) & 0x0f0f0f0fu) | ((eight.more >> 1) & 0x10101010u);
    DecodeBytes<false>(low, scale.factor, scale.offset, w);
    DecodeBytes<false>(high, scale.factor, scale.offset, w + 4);
  }
};

template <>
struct PackedDecoder<WeightFormat::kQ6_K> {
  struct Scale {
    float factor, offset;
  };
  // Makes the Scale of 16 weights. `d`: the block's factor, float16 bits; `s`: the four int8 scales of 64 features, the
  // first lowest; `quarter`: which 16 of these, 0 to 3.
  __device__ __forceinline__ static Scale Of(uint32_t d, uint32_t s, int quarter) {
    const float factor = LowF16(d) * static_cast<float>(static_cast<int8_t>(s >> (8 * quarter)));
    return {factor, -32.0f * factor};
  }
  __device__ __forceinline__ static void Decode(const PackedEight& eight, const Scale& scale, float* w) {
    const uint32_t low = (eight.q & 0x0f0f0f0fu) | (eight.more & 0x30303030u);
    const uint32_t high = ((eight.q >> 4) & 0x0f0f0f0fu) | ((eight.more >> 2) & 0x30303030u);
    DecodeBytes<false>(low, scale.factor, scale.offset, w);
    DecodeBytes<false>(high, scale.factor, scale.offset, w + 4);
  }
};

template <>
struct PackedDecoder<WeightFormat::kF8E4M3> {
  struct Scale {
    float factor;
  };
  __device__ __forceinline__ static Scale Of(float scale) { return {scale * kE4M3Unit}; }
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

// Raw bits of 32 or 64 neighbouring weights of an output, from LoadBlocks; kBlocks: number of blocks of 32, 1 or 2.
template <WeightFormat kFormat, int kBlocks>
struct PackedBlocks {
  using Decoder = PackedDecoder<kFormat>;
  static constexpr bool kBytes = kFormat == WeightFormat::kQ8_0 || kFormat == WeightFormat::kF8E4M3;
  static constexpr int kUnits = kBytes ? 2 : 1;  // units of q per block

  Vec4 q[kBlocks * kUnits];
  // High bits of q. Q6_K: high[2 b] and high[2 b + 1], one word per 16 weights of block b. Q5_K: high[2 b], one word
  // per block. Other formats: unset.
  uint32_t high[kBlocks * 2];
  Vec4 scales;    // Q4_K, Q5_K: scales of the 256 weights; Q6_K: s; F8_E4M3: the scale
  uint32_t d;     // Q8_0, Q4_0: d of both blocks of 64 weights; Q6_K: d
  int32_t odd;    // 1 if the first block is the second half of its 64 weights, else 0
  int32_t group;  // Q4_K, Q5_K: index of these 64 weights in the row

  // Decodes weights [8 j, 8 j + 8), j < 4, of block b < kBlocks into w in order. b and j must be constants.
  __device__ __forceinline__ void Decode(int b, int j, float (&w)[8]) const {
    const int32_t second = kBlocks == 2 ? b : odd;
    float words[4];
    Unpack4(q[b * kUnits + (kBytes ? j / 2 : 0)], words);
    PackedEight eight{};
    if constexpr (kBytes) {
      eight = {FloatToBits(words[j % 2 * 2]), FloatToBits(words[j % 2 * 2 + 1])};
    } else {
      eight.q = FloatToBits(words[j]);
    }
    if constexpr (kFormat == WeightFormat::kQ8_0 || kFormat == WeightFormat::kQ4_0) {
      Decoder::Decode(eight, Decoder::Of(LowF16(d >> (16 * second))), w);
    } else if constexpr (kFormat == WeightFormat::kF8E4M3) {
      Decoder::Decode(eight, Decoder::Of(scales.x), w);
    } else if constexpr (kFormat == WeightFormat::kQ6_K) {
      eight.more = Rotated(high[2 * b + j / 2], 4 - 4 * (j % 2));
      Decoder::Decode(eight, Decoder::Of(d, FloatToBits(scales.x) >> (16 * second), j / 2), w);
    } else {
      if constexpr (kFormat == WeightFormat::kQ5_K) eight.more = Rotated(high[2 * b], 4 - 2 * j);
      Decoder::Decode(eight, Decoder::Of(FloatToBits(scales.x), ScaleBits(scales, group), second), w);
    }
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
  constexpr int kUnitFeatures = 32 / Blocks::kUnits;
  const int32_t first = index * Blocks::kUnits;
  const int32_t units = (features + kUnitFeatures - 1) / kUnitFeatures;
  const uint32_t block32 = within(index, (features + 31) / 32);
  Blocks blocks;
  blocks.odd = index % 2;
#pragma unroll
  for (int i = 0; i < kBlocks * Blocks::kUnits; ++i) {
    blocks.q[i] = kWhole ? row.Load16(0, static_cast<uint32_t>(first), i) : row.Load16(0, within(first + i, units));
  }
  if constexpr (kFormat == WeightFormat::kQ8_0 || kFormat == WeightFormat::kQ4_0) {
    blocks.d = row.LoadWord(row.d, block32 / 2, 4);
  } else if constexpr (kFormat == WeightFormat::kF8E4M3) {
    blocks.scales.x = row.Fp8Scale(block32 / 4);
  } else if constexpr (kFormat == WeightFormat::kQ6_K) {
    if constexpr (kBlocks == 2) {
      float words[4];
      Unpack4(row.Load16(row.high, block32 / 2), words);
#pragma unroll
      for (int i = 0; i < 4; ++i) blocks.high[i] = FloatToBits(words[i]);
    } else {
      const uint64_t high = row.LoadWords(row.high, block32 / 2, 16, 8 * (block32 % 2));
      blocks.high[0] = static_cast<uint32_t>(high);
      blocks.high[1] = static_cast<uint32_t>(high >> 32);
    }
    blocks.scales.x = BitsToFloat(row.LoadWord(row.scales, block32 / 2, 4));
    blocks.d = row.LoadHalf(row.d, block32 / 8);
  } else {
    if constexpr (kFormat == WeightFormat::kQ5_K && kBlocks == 2) {
      const uint64_t high = row.LoadWords(row.high, block32 / 2, 8, 0);
      blocks.high[0] = static_cast<uint32_t>(high);
      blocks.high[2] = static_cast<uint32_t>(high >> 32);
    } else if constexpr (kFormat == WeightFormat::kQ5_K) {
      blocks.high[0] = row.LoadWord(row.high, block32 / 2, 8, 4 * (block32 % 2));
    }
    blocks.scales = row.Load16(row.scales, block32 / 8);
    blocks.group = static_cast<int32_t>(block32 / 2);
  }
  return blocks;
}

}  // namespace gdn::gpu
