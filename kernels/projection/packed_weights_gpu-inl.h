// Device code: quantised weights in packed_weights_gpu.h's order, on their way from memory to float32.
//
// A weight becomes w = fmaf(v, factor, offset) of an integer v, rounded once as its format's formula is, so its bits
// are the formula's. In Q8_0 and Q4_0, v has the bias of BiasedByte, which the offset takes back exactly: factors have
// 11 bits there. In the others v has none. Loads and decoding are apart, so that many loads can be on their way before
// the first is used.
// Thread safety: pure functions.
//
//   const PackedRow row = PackedRowOf({data, scales, outputs}, bytes, output / kPackedRows, output, features);
//   const auto block = LoadBlock<WeightFormat::kQ4_K>(row, 3, features);  // features 96 to 127
//   float w[8];  block.Decode(1, w);                                      // of these, 8 to 15
#pragma once

#include <cstdint>

#include "base/weight_format.h"
#include "kernels/gpu/device.h"
#include "kernels/projection/packed_weights_gpu.h"
#include "kernels/projection/projection_args.h"

namespace gdn::gpu {

// Where the weights of an output lie: unit `index` of a plane at `plane` + (index * rows + row) * the unit's bytes. All
// but `row` are a tile's: the compiler sees where lanes share them.
struct PackedRow {
  const char* tile;
  uint32_t rows, row;        // of the tile
  uint32_t high, scales, d;  // where these planes begin
  const float* fp8_scales;   // of F8_E4M3 alone; the row's first, one for 128 features each, is
  int64_t first_scale;       // this one

  __device__ __forceinline__ const char* Unit(uint32_t plane, uint32_t index, uint32_t bytes) const {
    return tile + (plane + (index * rows + row) * bytes);
  }
  __device__ __forceinline__ Vec4 Load16(uint32_t plane, uint32_t index) const {
    return Load4(reinterpret_cast<const float*>(Unit(plane, index, 16)));
  }
  // Of a unit, the word at `at`, or two.
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
  int32_t outputs;
};

// That of `output`, which exists, in tile number `tile`. `bytes`: PackedRowBytesOf the matrix's format and features.
__device__ __forceinline__ PackedRow PackedRowOf(const PackedMatrix& m, const PackedRowBytes& bytes, int32_t tile,
                                                 int32_t output, int32_t features) {
  const int32_t first = tile * kPackedRows;
  PackedRow row;
  row.tile = m.tiles + first * bytes.total();
  row.fp8_scales = m.fp8_scales;
  row.first_scale = first / kFp8Block * Fp8Blocks(int64_t{features});
  row.rows = static_cast<uint32_t>(m.outputs - first < kPackedRows ? m.outputs - first : kPackedRows);
  row.row = static_cast<uint32_t>(output - first);
  row.high = row.rows * static_cast<uint32_t>(bytes.q);
  row.scales = row.high + row.rows * static_cast<uint32_t>(bytes.high);
  row.d = row.scales + row.rows * static_cast<uint32_t>(bytes.scales);
  return row;
}

// w[i] = (kByteBias + byte i) * factor + offset, kBiased; else byte i * factor + offset.
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

// Moves a word's bits to the left, or where `by` is negative to the right; what leaves it comes back at the other end.
__device__ __forceinline__ uint32_t Rotated(uint32_t word, int by) { return word << (by & 31) | word >> (-by & 31); }

// What eight neighbouring weights are decoded from. q: of the first four if they have eight bits, of all eight if four.
// more: of the other four; or the bits above q, of the first four weights from bit 4 of each byte on, of the others
// behind them.
struct PackedEight {
  uint32_t q;
  uint32_t more;
};

template <WeightFormat kFormat>
struct PackedDecoder;

// Each has Scale, what some weights share; Of, which makes it from memory's bits; and Decode, which writes eight
// weights.
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

// High halves are taken where they are, as 16 times their values.
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

// The bits of 64 features' scales: (s, t, s, t) of six bits each; above them any.
__device__ __forceinline__ uint32_t ScaleBits(const Vec4& words, int32_t group) {
  const uint32_t a = FloatToBits(words.y);
  const uint32_t b = FloatToBits(words.z);
  const uint32_t c = FloatToBits(words.w);
  const uint32_t last = a >> 24 | (b >> 24) << 8 | (c >> 24) << 16;
  const uint32_t first = (group & 1) == 0 ? a : b;
  const uint32_t second = (group & 1) == 0 ? c : last;
  return (group & 2) == 0 ? first : second;
}

template <>
struct PackedDecoder<WeightFormat::kQ4_K> {
  struct Scale {
    float factor, offset;
  };
  // `bits`: ScaleBits; `half`: which 32 of the 64 features.
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
  // `s`: of 64 features; `quarter`: which 16 of them.
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

// 32 weights of an output as they lie in memory.
template <WeightFormat kFormat>
struct PackedBlock {
  using Decoder = PackedDecoder<kFormat>;
  static constexpr bool kBytes = kFormat == WeightFormat::kQ8_0 || kFormat == WeightFormat::kF8E4M3;

  Vec4 q[kBytes ? 2 : 1];
  uint32_t high[2];  // Q5_K: one word; Q6_K: one for 16 weights each
  Vec4 scales;       // Q4_K, Q5_K: the 256 weights'; Q6_K: s; F8_E4M3: the scale
  uint32_t d;        // Q8_0, Q4_0: both blocks' of 64 weights; Q6_K
  int32_t odd;       // whether it is the second block of 64 weights
  int32_t group;     // Q4_K, Q5_K: number of these 64 in the row

  // Weights [8 j, 8 j + 8). j is a constant.
  __device__ __forceinline__ void Decode(int j, float (&w)[8]) const {
    float words[4];
    Unpack4(q[kBytes ? j / 2 : 0], words);
    PackedEight eight{};
    if constexpr (kBytes) {
      eight = {FloatToBits(words[j % 2 * 2]), FloatToBits(words[j % 2 * 2 + 1])};
    } else {
      eight.q = FloatToBits(words[j]);
    }
    if constexpr (kFormat == WeightFormat::kQ8_0 || kFormat == WeightFormat::kQ4_0) {
      Decoder::Decode(eight, Decoder::Of(LowF16(d >> (16 * odd))), w);
    } else if constexpr (kFormat == WeightFormat::kF8E4M3) {
      Decoder::Decode(eight, Decoder::Of(scales.x), w);
    } else if constexpr (kFormat == WeightFormat::kQ6_K) {
      eight.more = Rotated(high[j / 2], 4 - 4 * (j % 2));
      Decoder::Decode(eight, Decoder::Of(d, FloatToBits(scales.x) >> (16 * odd), j / 2), w);
    } else {
      if constexpr (kFormat == WeightFormat::kQ5_K) eight.more = Rotated(high[0], 4 - 2 * j);
      Decoder::Decode(eight, Decoder::Of(FloatToBits(scales.x), ScaleBits(scales, group), odd), w);
    }
  }
};

// Weights [32 index, 32 index + 32). Of those past the last of `features` any others of the row: a lane loads without
// asking whether there are some, and their x is 0.
template <WeightFormat kFormat>
__device__ __forceinline__ PackedBlock<kFormat> LoadBlock(const PackedRow& row, int32_t index, int32_t features) {
  const auto within = [](int32_t unit, int32_t units) {
    return static_cast<uint32_t>(unit < units ? unit : units - 1);
  };
  const uint32_t block32 = within(index, (features + 31) / 32);
  PackedBlock<kFormat> block;
  block.odd = index % 2;
  if constexpr (PackedBlock<kFormat>::kBytes) {
    const int32_t units = (features + 15) / 16;
    block.q[0] = row.Load16(0, within(2 * index, units));
    block.q[1] = row.Load16(0, within(2 * index + 1, units));
  } else {
    block.q[0] = row.Load16(0, block32);
  }
  if constexpr (kFormat == WeightFormat::kQ8_0 || kFormat == WeightFormat::kQ4_0) {
    block.d = row.LoadWord(row.d, block32 / 2, 4);
  } else if constexpr (kFormat == WeightFormat::kF8E4M3) {
    block.scales.x = row.Fp8Scale(block32 / 4);
  } else if constexpr (kFormat == WeightFormat::kQ6_K) {
    const uint64_t high = row.LoadWords(row.high, block32 / 2, 16, 8 * (block32 % 2));
    block.high[0] = static_cast<uint32_t>(high);
    block.high[1] = static_cast<uint32_t>(high >> 32);
    block.scales.x = BitsToFloat(row.LoadWord(row.scales, block32 / 2, 4));
    block.d = row.LoadHalf(row.d, block32 / 8);
  } else {
    if constexpr (kFormat == WeightFormat::kQ5_K) {
      block.high[0] = row.LoadWord(row.high, block32 / 2, 8, 4 * (block32 % 2));
    }
    block.scales = row.Load16(row.scales, block32 / 8);
    block.group = static_cast<int32_t>(block32 / 2);
  }
  return block;
}

}  // namespace gdn::gpu
