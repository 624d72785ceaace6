#include "kernels/projection/packed_weights_gpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/iq3s_grid.h"

namespace gdn {
namespace {

// A row's place in a tile: unit `index` of a plane is at `plane` + (index * kPackedRows + row) * bytes.
struct Place {
  uint8_t* tile;
  int64_t row;

  uint8_t* Unit(int64_t plane, int64_t index, int64_t bytes) const {
    return tile + plane + (index * kPackedRows + row) * bytes;
  }
};

// 32 weights of four bits each, one to a byte, as a 16-byte unit.
void PackHalves(const uint8_t* q, uint8_t* unit) {
  for (int word = 0; word < 4; ++word) {
    for (int b = 0; b < 4; ++b) {
      const uint8_t* low = q + 8 * word + b;
      unit[4 * word + b] = static_cast<uint8_t>((low[0] & 0xf) | (low[4] & 0xf) << 4);
    }
  }
}

void PackQ8_0(const uint8_t* block, int64_t index, const Place& place, const PackedPlanes& planes) {
  for (int half = 0; half < 2; ++half) {
    uint8_t* unit = place.Unit(0, 2 * index + half, 16);
    for (int i = 0; i < 16; ++i) unit[i] = block[2 + 16 * half + i] ^ 0x80;  // q + 128
  }
  std::memcpy(place.Unit(planes.d, index / 2, 4) + 2 * (index % 2), block, 2);
}

// 32 weights whose four low bits are the low halves of 16 bytes and then the high ones.
void PackNibbles(const uint8_t* nibbles, uint8_t* unit) {
  uint8_t q[32];
  for (int i = 0; i < 16; ++i) {
    q[i] = nibbles[i] & 0xf;
    q[16 + i] = nibbles[i] >> 4;
  }
  PackHalves(q, unit);
}

// One high bit of each of 32 weights, bit_of(i) of weight i, as word `run` of plane `high`.
template <typename BitOf>
void PackHighBits(const BitOf& bit_of, int64_t run, const Place& place, const PackedPlanes& planes) {
  uint8_t high[4] = {};
  for (int i = 0; i < 32; ++i) high[i % 4] |= static_cast<uint8_t>(bit_of(i) << i / 4);
  std::memcpy(place.Unit(planes.high, run / 2, 8) + 4 * (run % 2), high, 4);
}

// Q4_0, Q4_1, Q5_0, Q5_1 and IQ4_NL: d, m, the fifth bits and the other four, as far as the format has them.
void PackBlock32(WeightFormat format, const uint8_t* block, int64_t index, const Place& place,
                 const PackedPlanes& planes) {
  const int64_t factors = FactorsAt(format).m >= 0 ? 4 : 2;
  std::memcpy(place.Unit(planes.d, index / 2, 2 * factors) + factors * (index % 2), block, factors);
  const uint8_t* rest = block + factors;
  if (format == WeightFormat::kQ5_0 || format == WeightFormat::kQ5_1) {
    PackHighBits([&](int i) { return rest[i / 8] >> i % 8 & 1; }, index, place, planes);
    rest += 4;
  }
  PackNibbles(rest, place.Unit(0, index, 16));
}

// The 12 bytes of six-bit numbers: those of the first four pairs have six bits of a byte each; of the others four bits
// lie in bytes of their own, and two above those of the first.
void PackScalePairs(const uint8_t* scales, uint8_t* packed) {
  for (int g = 0; g < 4; ++g) {
    uint32_t bits = 0;
    for (int half = 0; half < 2; ++half) {
      const int pair = 2 * g + half;
      const uint32_t s = pair < 4 ? scales[pair] & 63 : (scales[pair + 4] & 0xf) | scales[pair - 4] >> 6 << 4;
      const uint32_t t = pair < 4 ? scales[pair + 4] & 63 : scales[pair + 4] >> 4 | scales[pair] >> 6 << 4;
      bits |= (s | t << 6) << 12 * half;
    }
    std::memcpy(packed + 3 * g, &bits, 3);
  }
}

// Q4_K, where `fifth` is null, and Q5_K.
void PackK45(const uint8_t* block, const uint8_t* fifth, const uint8_t* nibbles, int64_t index, const Place& place,
             const PackedPlanes& planes) {
  uint8_t* scales = place.Unit(planes.scales, index, 16);
  std::memcpy(scales, block, 4);
  PackScalePairs(block + 4, scales + 4);
  for (int p = 0; p < 8; ++p) {
    uint8_t q[32];
    for (int i = 0; i < 32; ++i) q[i] = nibbles[p / 2 * 32 + i] >> 4 * (p % 2);
    PackHalves(q, place.Unit(0, 8 * index + p, 16));
    if (fifth != nullptr) PackHighBits([&](int i) { return fifth[i] >> p & 1; }, 8 * index + p, place, planes);
  }
}

void PackQ6_K(const uint8_t* block, int64_t index, const Place& place, const PackedPlanes& planes) {
  for (int p = 0; p < 8; ++p) {  // 32 weights each: a quarter of a half of the block
    const uint8_t* low = block + p / 4 * 64 + p % 2 * 32;
    const uint8_t* two_bits = block + 128 + p / 4 * 32;
    const int quarter = p % 4;
    uint8_t q[32];
    uint8_t high[8] = {};
    for (int i = 0; i < 32; ++i) {
      q[i] = quarter < 2 ? low[i] & 0xf : low[i] >> 4;
      high[i / 16 * 4 + i % 4] |= static_cast<uint8_t>((two_bits[i] >> 2 * quarter & 3) << 2 * (i % 16 / 4));
    }
    PackHalves(q, place.Unit(0, 8 * index + p, 16));
    std::memcpy(place.Unit(planes.high, 4 * index + p / 2, 16) + 8 * (p % 2), high, 8);
  }
  for (int g = 0; g < 4; ++g) std::memcpy(place.Unit(planes.scales, 4 * index + g, 4), block + 192 + 4 * g, 4);
  std::memcpy(place.Unit(planes.d, index, 2), block + 208, 2);
}

// Two bits of 256 weights, which lie as in weight_format.cc's TwoBitsOf.
void PackTwoBits(const uint8_t* bytes, int64_t index, const Place& place) {
  for (int sixteen = 0; sixteen < 16; ++sixteen) {
    const uint8_t* from = bytes + sixteen / 8 * 32 + sixteen % 2 * 16;
    uint8_t* word = place.Unit(0, 4 * index + sixteen / 4, 16) + 4 * (sixteen % 4);
    std::memset(word, 0, 4);
    for (int i = 0; i < 16; ++i) {
      word[i % 4] |= static_cast<uint8_t>((from[i] >> sixteen % 8 / 2 * 2 & 3) << i / 4 * 2);
    }
  }
}

void PackQ2_K(const uint8_t* block, int64_t index, const Place& place, const PackedPlanes& planes) {
  PackTwoBits(block + 16, index, place);
  for (int g = 0; g < 4; ++g) std::memcpy(place.Unit(planes.scales, 4 * index + g, 4), block + 4 * g, 4);
  std::memcpy(place.Unit(planes.d, index, 4), block + 80, 4);
}

void PackQ3_K(const uint8_t* block, int64_t index, const Place& place, const PackedPlanes& planes) {
  PackTwoBits(block + 32, index, place);
  for (int p = 0; p < 8; ++p) {
    PackHighBits([&](int i) { return block[i] >> p & 1; }, 8 * index + p, place, planes);
  }
  uint8_t* scales = place.Unit(planes.scales, index, 12);
  std::memset(scales, 0, 12);
  for (int i = 0; i < 16; ++i) {
    const int low = block[96 + i % 8] >> i / 8 * 4 & 0xf;
    const int high = block[104 + i % 4] >> i / 4 * 2 & 3;
    scales[i / 2] |= static_cast<uint8_t>(low << i % 2 * 4);
    scales[8 + i / 4] |= static_cast<uint8_t>(high << i % 4 * 2);
  }
  std::memcpy(place.Unit(planes.d, index, 2), block + 108, 2);
}

void PackIQ4_XS(const uint8_t* block, int64_t index, const Place& place, const PackedPlanes& planes) {
  std::memcpy(place.Unit(planes.scales, index, 8), block, 8);
  for (int p = 0; p < 8; ++p) PackNibbles(block + 8 + 16 * p, place.Unit(0, 8 * index + p, 16));
}

void PackIQ3_S(const uint8_t* block, int64_t index, const Place& place, const PackedPlanes& planes) {
  uint8_t* scales = place.Unit(planes.scales, index, 8);
  std::memset(scales, 0, 8);
  std::memcpy(scales, block, 2);
  std::memcpy(scales + 4, block + 106, 4);
  for (int p = 0; p < 8; ++p) {
    uint8_t q[32];
    for (int i = 0; i < 32; ++i) {
      const int four = 8 * p + i / 4;
      const uint32_t values = kIq3sGrid[block[2 + four] | (block[66 + p] >> i / 4 & 1) << 8];
      const int v = static_cast<int>(values >> i % 4 * 8 & 0xf);
      const bool negative = (block[74 + 4 * p + i / 8] >> i % 8 & 1) != 0;
      q[i] = static_cast<uint8_t>(((negative ? -v : v) + 15) / 2);
    }
    PackHalves(q, place.Unit(0, 8 * index + p, 16));
  }
}

// Kernels multiply by 256 times the scale. What is infinite or no number stays so.
absl::Status CheckScales(const WeightMatrix& m) {
  constexpr float kLargest = 0x1p119f;
  for (int64_t row = 0; row < Fp8Blocks(m.rows); ++row) {
    for (int64_t col = 0; col < Fp8Blocks(m.cols); ++col) {
      const float scale = m.scales[row * Fp8Blocks(m.cols) + col];
      if (std::isinf(scale) || !(std::fabs(scale) > kLargest)) continue;
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                       absl::StrCat("weights of F8_E4M3: the scale ", scale, " of block ", row, ", ", col,
                                    " is out of range; expected at most 2^119"),
                       {{"field", "weight.scales"}});
    }
  }
  return absl::OkStatus();
}

void PackFp8(const uint8_t* bytes, int64_t cols, int64_t index, const Place& place) {
  const int64_t count = std::min<int64_t>(16, cols - 16 * index);
  uint8_t* unit = place.Unit(0, index, 16);
  std::memcpy(unit, bytes + 16 * index, static_cast<size_t>(count));
  std::memset(unit + count, 0, static_cast<size_t>(16 - count));
}

void PackBlock(WeightFormat format, const uint8_t* block, int64_t index, const Place& place,
               const PackedPlanes& planes) {
  switch (format) {
    case WeightFormat::kQ8_0:
      return PackQ8_0(block, index, place, planes);
    case WeightFormat::kQ4_0:
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_0:
    case WeightFormat::kQ5_1:
    case WeightFormat::kIQ4_NL:
      return PackBlock32(format, block, index, place, planes);
    case WeightFormat::kQ2_K:
      return PackQ2_K(block, index, place, planes);
    case WeightFormat::kQ3_K:
      return PackQ3_K(block, index, place, planes);
    case WeightFormat::kQ4_K:
      return PackK45(block, nullptr, block + 16, index, place, planes);
    case WeightFormat::kQ5_K:
      return PackK45(block, block + 16, block + 48, index, place, planes);
    case WeightFormat::kQ6_K:
      return PackQ6_K(block, index, place, planes);
    case WeightFormat::kIQ4_XS:
      return PackIQ4_XS(block, index, place, planes);
    case WeightFormat::kIQ3_S:
      return PackIQ3_S(block, index, place, planes);
    default:
      return;
  }
}

// Rounds to fp16 what is not exact. Infinities and NaN stay so.
void PackScaledHalves(const WeightMatrix& from, uint16_t* packed) {
  std::vector<float> row(static_cast<size_t>(from.cols));
  for (int64_t i = 0; i < from.rows; ++i) {
    WeightRow(from, i, row.data());
    for (float& value : row) value *= from.scales[i];
    ConvertFromFloat(row.data(), row.size(), DType::kF16, packed + i * from.cols);
  }
}

}  // namespace

absl::Status PackWeights(const WeightMatrix& from, void* packed) {
  const auto* rows = static_cast<const uint8_t*>(from.data);
  const int64_t row_bytes = RowBytes(from.format, from.cols);
  if (LiesAsHalves(from)) {
    PackScaledHalves(from, static_cast<uint16_t*>(packed));
    return absl::OkStatus();
  }
  if (IsPlain(from.format)) {
    std::memcpy(packed, rows, static_cast<size_t>(from.rows * row_bytes));
    return absl::OkStatus();
  }
  if (from.cols > kMaxPackedFeatures) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                     absl::StrCat("weights of ", from.cols, " columns; quantised ones have at most ",
                                  kMaxPackedFeatures, " on a GPU"),
                     {{"field", "weight.cols"}});
  }
  const bool fp8 = from.format == WeightFormat::kF8E4M3;
  if (fp8) {
    if (const absl::Status status = CheckScales(from); !status.ok()) return status;
  }
  const PackedPlanes planes = PackedPlanesOf(from.format, from.cols);
  const WeightBlock block = fp8 ? WeightBlock{16, 16} : BlockOf(from.format);
  const int64_t blocks = (from.cols + block.weights - 1) / block.weights;
  auto* tile = static_cast<uint8_t*>(packed);
  for (int64_t first = 0; first < from.rows; first += kPackedRows, tile += planes.bytes) {
    const int64_t count = std::min<int64_t>(kPackedRows, from.rows - first);
    // Rows that are not there, and the second block of a pair if the number of blocks is odd.
    const uint32_t zeros_at = count < kPackedRows ? 0 : planes.high;
    std::memset(tile + zeros_at, 0, planes.bytes - zeros_at);
    for (int64_t index = 0; index < blocks; ++index) {
      for (int64_t row = 0; row < count; ++row) {
        const uint8_t* source = rows + (first + row) * row_bytes;
        const Place place{tile, row};
        if (fp8) {
          PackFp8(source, from.cols, index, place);
        } else {
          PackBlock(from.format, source + index * block.bytes, index, place, planes);
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace gdn
