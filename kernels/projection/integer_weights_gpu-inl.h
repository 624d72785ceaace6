// Device code: GGUF's weights as integers with scales, and a block's products with rounded inputs.
//
// A weight is scale * (v - zero) + offset. v is one of a word's four bytes, `zero` is a constant of the format. The
// product of a block's 32 weights with x is d_x * p. p is, rounded after each operation,
//   one scale     scale * idot [+ offset * sum]
//   two scales    scale 1 * idot 1 + scale 0 * idot 0 [+ offset 0 * sum 0 + offset 1 * sum 1], of 16 weights each
// idot is the exact sum of the products (v - zero) * q_x, and `sum` that of q_x. All additions but the first product
// are multiply-adds, in this order. An idot is summed on top of kDotBias: its bits, read as float32, are then
// kDotBiasValue + idot, exactly. So fmaf(bits, scale, -kDotBiasValue * scale) is scale * idot, rounded once: no scale
// has more than 19 significant bits, so its product with the bias is exact. This saves a conversion.
// Thread safety: pure functions.
//
//   const IntegerBlock<kFormat> w = IntegerBlockOf(blocks, 0);
//   sum = fmaf(d_x, ProductOf(w, x_words, BlockExtrasOf<kFormat>(sums)), sum);
#pragma once

#include <cstdint>

#include "base/product_math.h"
#include "kernels/gpu/device.h"
#include "kernels/projection/packed_weights_gpu-inl.h"
#include "kernels/projection/rounded_inputs_gpu-inl.h"

namespace gdn::gpu {

inline constexpr int32_t kDotBias = 0x4b400000;
inline constexpr float kDotBiasValue = 0x1.8p23f;  // has the bits kDotBias

constexpr bool HasOffsets(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_1:
    case WeightFormat::kQ2_K:
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K:
      return true;
    default:
      return false;
  }
}
// Returns the scales of a block of 32 weights, 1 or 2.
constexpr int ScalesOfBlock(WeightFormat format) {
  return format == WeightFormat::kQ2_K || format == WeightFormat::kQ3_K || format == WeightFormat::kQ6_K ? 2 : 1;
}
// Returns what a byte of IntegerWords has for a weight of zero, apart from offsets.
constexpr int ZeroOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ4_0:
      return 8;
    case WeightFormat::kQ5_0:
      return 16;
    case WeightFormat::kQ3_K:
      return 4;
    case WeightFormat::kQ6_K:
      return 32;
    case WeightFormat::kIQ3_S:
      return 15;
    default:
      return 0;
  }
}

// Makes the bytes v of eight weights: of the first four in `first`, of the others in `second`.
template <WeightFormat kFormat>
__device__ __forceinline__ void IntegerWords(const PackedEight& eight, uint32_t& first, uint32_t& second) {
  if constexpr (kFormat == WeightFormat::kQ8_0) {
    first = eight.q ^ 0x80808080u;
    second = eight.more ^ 0x80808080u;
  } else if constexpr (kFormat == WeightFormat::kIQ4_NL || kFormat == WeightFormat::kIQ4_XS) {
    first = Iq4Bytes<0>(eight.q & 0x0f0f0f0fu);
    second = Iq4Bytes<0>((eight.q >> 4) & 0x0f0f0f0fu);
  } else if constexpr (kFormat == WeightFormat::kIQ3_S) {  // 2 q, so that the weight zero is an integer
    first = (eight.q << 1) & 0x1e1e1e1eu;
    second = (eight.q >> 3) & 0x1e1e1e1eu;
  } else {
    JoinBits<kFormat>(eight, first, second);
  }
}

// Returns four bytes v - zero, signed.
template <WeightFormat kFormat>
__device__ __forceinline__ uint32_t WithoutZero(uint32_t word) {
  constexpr uint32_t kZero = ZeroOf(kFormat);
  if constexpr (kZero == 0) return word;
  return ((word | 0x80808080u) - kZero * 0x01010101u) ^ 0x80808080u;  // no byte borrows from the next
}

// Makes pairs of fp16 numbers v - zero of a word of IntegerWords: the first two weights in `low`. They are exact: a
// byte is put below 1024's bits, and 1024 taken off again.
template <WeightFormat kFormat>
__device__ __forceinline__ void IntegerHalves(uint32_t word, uint32_t& low, uint32_t& high) {
  constexpr bool kSigned =
      kFormat == WeightFormat::kQ8_0 || kFormat == WeightFormat::kIQ4_NL || kFormat == WeightFormat::kIQ4_XS;
  constexpr uint32_t kTaken = kSigned ? 128 : static_cast<uint32_t>(ZeroOf(kFormat));
  constexpr uint32_t k1024 = 0x64006400u;
  const uint32_t bytes = kSigned ? word ^ 0x80808080u : word;
  low = SubtractHalves(SelectBytes(bytes, k1024, 0x05010500u), k1024 + kTaken * 0x00010001u);
  high = SubtractHalves(SelectBytes(bytes, k1024, 0x05030502u), k1024 + kTaken * 0x00010001u);
}

struct IntegerScale {
  float scale, offset;
};
template <WeightFormat kFormat>
__device__ __forceinline__ IntegerScale IntegerScaleOf(const ScaleWords& words, const EightPlace& at) {
  const auto decoded = PackedDecoder<kFormat>::Of(words, at);
  return {kFormat == WeightFormat::kIQ3_S ? 0.5f * decoded.factor : decoded.factor, decoded.offset};
}

// Returns scale * idot of a sum on top of kDotBias, rounded once; `start` is -kDotBiasValue * scale. PlainDot returns
// idot.
__device__ __forceinline__ float ScaledDot(int32_t biased, float scale, float start) {
  return fmaf(BitsToFloat(static_cast<uint32_t>(biased)), scale, start);
}
__device__ __forceinline__ float PlainDot(int32_t biased) {
  return BitsToFloat(static_cast<uint32_t>(biased)) - kDotBiasValue;
}

// 32 weights of an output, decoded.
template <WeightFormat kFormat>
struct IntegerBlock {
  static constexpr int kScales = ScalesOfBlock(kFormat);

  uint32_t words[kBlockWords];
  float scale[kScales], offset[kScales];  // offsets only if the format has them
};

template <WeightFormat kFormat, int kBlocks>
__device__ __forceinline__ IntegerBlock<kFormat> IntegerBlockOf(const PackedBlocks<kFormat, kBlocks>& blocks, int b) {
  IntegerBlock<kFormat> block;
#pragma unroll
  for (int j = 0; j < 4; ++j) IntegerWords<kFormat>(blocks.Eight(b, j), block.words[2 * j], block.words[2 * j + 1]);
#pragma unroll
  for (int i = 0; i < block.kScales; ++i) {
    const IntegerScale scale = IntegerScaleOf<kFormat>(blocks.scales, blocks.PlaceOf(b, 2 * i));
    block.scale[i] = scale.scale;
    block.offset[i] = scale.offset;
  }
  return block;
}

// Numbers of a block of x that products with a format need besides its words and scale, made once for all outputs. The
// float of each scale: with offsets the sum of q_x, otherwise the bits that a dot product starts from.
struct BlockExtras {
  float of_scale[2];
};
template <WeightFormat kFormat>
__device__ __forceinline__ BlockExtras BlockExtrasOf(const BlockSums& sums) {
  const int32_t of_scale[2] = {ScalesOfBlock(kFormat) == 1 ? sums.first + sums.second : sums.first, sums.second};
  BlockExtras extras;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if constexpr (HasOffsets(kFormat)) {
      extras.of_scale[i] = static_cast<float>(of_scale[i]);
    } else {
      extras.of_scale[i] = BitsToFloat(static_cast<uint32_t>(kDotBias - ZeroOf(kFormat) * of_scale[i]));
    }
  }
  return extras;
}

// Returns p of the words of x and their extras.
template <WeightFormat kFormat>
__device__ __forceinline__ float ProductOf(const IntegerBlock<kFormat>& w, const uint32_t (&x)[kBlockWords],
                                           const BlockExtras& extras) {
  constexpr int kScales = ScalesOfBlock(kFormat);
  constexpr int kWords = kBlockWords / kScales;
  float p = 0.0f;
#pragma unroll
  for (int i = 0; i < kScales; ++i) {
    int32_t dot = kDotBias;
    if constexpr (ZeroOf(kFormat) != 0) dot = static_cast<int32_t>(FloatToBits(extras.of_scale[i]));
#pragma unroll
    for (int j = 0; j < kWords; ++j) dot = Dot4(x[i * kWords + j], w.words[i * kWords + j], dot);
    p = i == 0 ? ScaledDot(dot, w.scale[0], -kDotBiasValue * w.scale[0]) : fmaf(w.scale[i], PlainDot(dot), p);
  }
  if constexpr (HasOffsets(kFormat)) {
#pragma unroll
    for (int i = 0; i < kScales; ++i) p = fmaf(w.offset[i], extras.of_scale[i], p);
  }
  return p;
}

}  // namespace gdn::gpu
