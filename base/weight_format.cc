#include "base/weight_format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/iq3s_grid.h"

namespace gdn {
namespace {

std::array<float, 256> MakeE4M3Table() {
  std::array<float, 256> table{};
  for (int bits = 0; bits < 256; ++bits) {
    const int exponent = bits >> 3 & 0xf;
    const int mantissa = bits & 0x7;
    float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    if (exponent == 0xf && mantissa == 0x7) value = std::numeric_limits<float>::quiet_NaN();
    table[static_cast<size_t>(bits)] = bits >= 0x80 ? -value : value;
  }
  return table;
}

const std::array<float, 256>& E4M3Table() {
  static const std::array<float, 256> table = MakeE4M3Table();
  return table;
}

float Half(const uint8_t* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return F16ToFloat(bits);
}

int8_t Signed(uint8_t byte) { return static_cast<int8_t>(byte); }

void DecodeQ8_0(const uint8_t* block, float* out) {
  const float d = Half(block);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(Signed(block[2 + i]));
}

// 4-bit number i of 32 in 16 bytes: the low halves, then the high ones.
int NibbleOf(const uint8_t* bytes, int i) { return i < 16 ? bytes[i] & 0xf : bytes[i - 16] >> 4; }

// Q4_0, Q4_1, Q5_0 and Q5_1: d, m, the fifth bits and the other four, as far as the format has them.
void DecodeNibbles(const uint8_t* block, bool has_minimum, bool has_fifth, float* out) {
  const float d = Half(block);
  const float m = has_minimum ? Half(block + 2) : 0.0f;
  const int zero = has_minimum ? 0 : has_fifth ? 16 : 8;
  const uint8_t* nibbles = block + (has_minimum ? 4 : 2) + (has_fifth ? 4 : 0);
  uint32_t fifth = 0;
  if (has_fifth) std::memcpy(&fifth, nibbles - 4, sizeof(fifth));
  for (int i = 0; i < 32; ++i) {
    const int q = NibbleOf(nibbles, i) | static_cast<int>(fifth >> i & 1) << 4;
    out[i] = d * static_cast<float>(q - zero) + m;
  }
}

// 32 weights of IQ4_NL and IQ4_XS.
void DecodeIq4(float scale, const uint8_t* nibbles, float* out) {
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(kIq4Values[NibbleOf(nibbles, i)]);
}

void DecodeIQ4_XS(const uint8_t* block, float* out) {
  const float d = Half(block);
  const int high = block[2] | block[3] << 8;
  for (int run = 0; run < 8; ++run) {
    const int low = block[4 + run / 2] >> 4 * (run % 2) & 0xf;
    const int s = (low | (high >> 2 * run & 3) << 4) - 32;
    DecodeIq4(d * static_cast<float>(s), block + 8 + 16 * run, out + 32 * run);
  }
}

// Weight i of Q2_K and Q3_K has two bits in a byte of the 32 that its half of the block has.
int TwoBitsOf(const uint8_t* bytes, int i) { return bytes[i / 128 * 32 + i % 32] >> 2 * (i / 32 % 4) & 3; }

void DecodeQ2_K(const uint8_t* block, float* out) {
  const float d = Half(block + 80);
  const float m = Half(block + 82);
  for (int i = 0; i < 256; ++i) {
    const uint8_t pair = block[i / 16];
    out[i] = d * static_cast<float>(pair & 0xf) * static_cast<float>(TwoBitsOf(block + 16, i)) -
             m * static_cast<float>(pair >> 4);
  }
}

void DecodeQ3_K(const uint8_t* block, float* out) {
  const float d = Half(block + 108);
  const uint8_t* scales = block + 96;  // low halves of 16 in 8 bytes, then their two high bits in 4
  for (int i = 0; i < 256; ++i) {
    const int third = block[i % 32] >> i / 32 & 1;
    const int n = i / 16;
    const int s = (scales[n % 8] >> n / 8 * 4 & 0xf) | (scales[8 + n % 4] >> n / 4 * 2 & 3) << 4;
    const int q = TwoBitsOf(block + 32, i) | third << 2;
    out[i] = d * static_cast<float>((s - 32) * (q - 4));
  }
}

void DecodeIQ3_S(const uint8_t* block, float* out) {
  const float d = Half(block);
  const uint8_t* signs = block + 74;
  for (int four = 0; four < 64; ++four) {
    const int s = block[106 + four / 16] >> four / 8 % 2 * 4 & 0xf;
    const float scale = d * static_cast<float>(1 + 2 * s);
    const uint32_t values = kIq3sGrid[block[2 + four] | (block[66 + four / 8] >> four % 8 & 1) << 8];
    for (int j = 0; j < 4; ++j) {
      const float magnitude = scale * static_cast<float>(values >> 8 * j & 0xff);
      out[4 * four + j] = (signs[four / 2] >> (four % 2 * 4 + j) & 1) != 0 ? -magnitude : magnitude;
    }
  }
}

// A pair of Q4_K and Q5_K. The first four have six bits of a byte each; of the others four bits lie in bytes of their
// own and two above those of the first.
struct ScalePair {
  float scale, minimum;
};
ScalePair PairOf(const uint8_t* scales, int i) {
  if (i < 4) return {static_cast<float>(scales[i] & 63), static_cast<float>(scales[i + 4] & 63)};
  return {static_cast<float>((scales[i + 4] & 0xf) | (scales[i - 4] >> 6 << 4)),
          static_cast<float>((scales[i + 4] >> 4) | (scales[i] >> 6 << 4))};
}

// Both of them; `fifth` is null, or has bit p of weight l of pair p in byte l.
void DecodeK45(const uint8_t* block, const uint8_t* fifth, const uint8_t* nibbles, float* out) {
  const float d = Half(block);
  const float m = Half(block + 2);
  for (int p = 0; p < 8; ++p) {
    const ScalePair pair = PairOf(block + 4, p);
    const float scale = d * pair.scale;
    const float minimum = m * pair.minimum;
    const uint8_t* bytes = nibbles + p / 2 * 32;  // two pairs share 32 bytes: low halves, then high ones
    for (int l = 0; l < 32; ++l) {
      int q = p % 2 == 0 ? bytes[l] & 0xf : bytes[l] >> 4;
      if (fifth != nullptr) q |= (fifth[l] >> p & 1) << 4;
      out[p * 32 + l] = scale * static_cast<float>(q) - minimum;
    }
  }
}

void DecodeQ6_K(const uint8_t* block, float* out) {
  const float d = Half(block + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = block + half * 64;
    const uint8_t* high = block + 128 + half * 32;
    const uint8_t* scales = block + 192 + half * 8;
    for (int quarter = 0; quarter < 4; ++quarter) {
      for (int l = 0; l < 32; ++l) {
        const uint8_t byte = low[quarter % 2 * 32 + l];
        const int q = (quarter < 2 ? byte & 0xf : byte >> 4) | (high[l] >> 2 * quarter & 3) << 4;
        const float scale = d * static_cast<float>(Signed(scales[quarter * 2 + l / 16]));
        out[half * 128 + quarter * 32 + l] = scale * static_cast<float>(q - 32);
      }
    }
  }
}

}  // namespace

std::string_view WeightFormatName(WeightFormat format) {
  constexpr std::string_view kNames[] = {"F32",  "F16",  "BF16", "F8_E4M3", "Q8_0", "Q4_0", "Q4_K",   "Q5_K", "Q6_K",
                                         "Q4_1", "Q5_0", "Q5_1", "IQ4_NL",  "Q2_K", "Q3_K", "IQ4_XS", "IQ3_S"};
  return kNames[static_cast<size_t>(format) - 1];
}

void DequantizeBlocks(WeightFormat format, const void* blocks, int64_t count, float* out) {
  if (IsPlain(format)) {
    ConvertToFloat(WidenedDType(format), blocks, static_cast<size_t>(count), out);
    return;
  }
  const WeightBlock size = BlockOf(format);
  const auto* block = static_cast<const uint8_t*>(blocks);
  for (int64_t i = 0; i < count; ++i, block += size.bytes, out += size.weights) {
    switch (format) {
      case WeightFormat::kQ8_0:
        DecodeQ8_0(block, out);
        break;
      case WeightFormat::kQ4_0:
        DecodeNibbles(block, /*has_minimum=*/false, /*has_fifth=*/false, out);
        break;
      case WeightFormat::kQ4_1:
        DecodeNibbles(block, /*has_minimum=*/true, /*has_fifth=*/false, out);
        break;
      case WeightFormat::kQ5_0:
        DecodeNibbles(block, /*has_minimum=*/false, /*has_fifth=*/true, out);
        break;
      case WeightFormat::kQ5_1:
        DecodeNibbles(block, /*has_minimum=*/true, /*has_fifth=*/true, out);
        break;
      case WeightFormat::kIQ4_NL:
        DecodeIq4(Half(block), block + 2, out);
        break;
      case WeightFormat::kQ2_K:
        DecodeQ2_K(block, out);
        break;
      case WeightFormat::kQ3_K:
        DecodeQ3_K(block, out);
        break;
      case WeightFormat::kQ4_K:
        DecodeK45(block, nullptr, block + 16, out);
        break;
      case WeightFormat::kQ5_K:
        DecodeK45(block, block + 16, block + 48, out);
        break;
      case WeightFormat::kQ6_K:
        DecodeQ6_K(block, out);
        break;
      case WeightFormat::kIQ4_XS:
        DecodeIQ4_XS(block, out);
        break;
      case WeightFormat::kIQ3_S:
        DecodeIQ3_S(block, out);
        break;
      default:
        return;
    }
  }
}

bool HasFiniteFactors(WeightFormat format, const void* block) {
  const auto* bytes = static_cast<const uint8_t*>(block);
  const FactorOffsets at = FactorsAt(format);
  uint16_t factors[2] = {};
  std::memcpy(factors, bytes + at.d, 2);
  if (at.m >= 0) std::memcpy(factors + 1, bytes + at.m, 2);
  constexpr uint16_t kExponent = 0x7c00;  // all ones: an infinity or no number
  return (factors[0] & kExponent) != kExponent && (factors[1] & kExponent) != kExponent;
}

void DequantizeRow(WeightFormat format, const void* row, const float* scales, int64_t cols, float* out) {
  if (format != WeightFormat::kF8E4M3) return DequantizeBlocks(format, row, cols / BlockOf(format).weights, out);
  const std::array<float, 256>& values = E4M3Table();
  const auto* bytes = static_cast<const uint8_t*>(row);
  for (int64_t j = 0; j < cols; ++j) out[j] = values[bytes[j]] * scales[j / kFp8Block];
}

bool QuantizeQ8_0(const float* values, int64_t count, void* blocks) {
  constexpr WeightBlock kBlock = BlockOf(WeightFormat::kQ8_0);
  constexpr float kMaxFactor = 65504.0f;
  auto* block = static_cast<uint8_t*>(blocks);
  for (int64_t i = 0; i < count; i += kBlock.weights, values += kBlock.weights, block += kBlock.bytes) {
    float greatest = 0.0f;
    for (int64_t j = 0; j < kBlock.weights; ++j) {
      if (!std::isfinite(values[j])) return false;
      greatest = std::max(greatest, std::fabs(values[j]));
    }
    if (greatest / 127.0f > kMaxFactor) return false;
    const uint16_t bits = FloatToF16(greatest / 127.0f);
    std::memcpy(block, &bits, sizeof(bits));
    const float factor = F16ToFloat(bits);  // rounded, so the greatest may come out above 127
    for (int64_t j = 0; j < kBlock.weights; ++j) {
      const float q = factor > 0.0f ? std::nearbyint(values[j] / factor) : 0.0f;
      block[2 + j] = static_cast<uint8_t>(static_cast<int8_t>(std::clamp(q, -127.0f, 127.0f)));
    }
  }
  return true;
}

float E4M3ToFloat(uint8_t bits) { return E4M3Table()[bits]; }

}  // namespace gdn
