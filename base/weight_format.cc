#include "base/weight_format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

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

void DecodeQ4_0(const uint8_t* block, float* out) {
  const float d = Half(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((block[2 + i] & 0xf) - 8);
    out[16 + i] = d * static_cast<float>((block[2 + i] >> 4) - 8);
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
  constexpr std::string_view kNames[] = {"F32", "F16", "BF16", "F8_E4M3", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K"};
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
        DecodeQ4_0(block, out);
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
      default:
        return;
    }
  }
}

bool HasFiniteFactors(WeightFormat format, const void* block) {
  // d lies first, before a m of its own, but for Q6_K's, which lies last.
  const auto* bytes = static_cast<const uint8_t*>(block);
  const bool has_minimum = format == WeightFormat::kQ4_K || format == WeightFormat::kQ5_K;
  uint16_t factors[2] = {};
  std::memcpy(factors, format == WeightFormat::kQ6_K ? bytes + 208 : bytes, has_minimum ? 4 : 2);
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
