#include "server/checkpoint/packed_weight.h"

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/dtype.h"
#include "base/string_cat.h"
#include "server/checkpoint/tensor_errors.h"

namespace gdn {
namespace {

constexpr int64_t kBlock = BlockOf(WeightFormat::kQ8_0).weights;  // the same for Q4_0
constexpr int kOffset = 8;                                        // added to 4-bit integers when they are stored
constexpr int64_t kPackedRows = 8;                                // rows with zero points in one int32
constexpr std::array<float, 8> kE2M1 = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

// By PackedFormat: its name, and the greatest magnitude that a weight can have before it is scaled.
constexpr std::array<std::string_view, 4> kNames = {"FP8", "INT8", "INT4", "NVFP4"};
constexpr std::array kGreatest = {448.0f, 128.0f, 15.0f, 6.0f};  // INT4: distance to a zero point

// Returns element `i` of 4-bit elements, two in a byte.
int Nibble(std::string_view bytes, int64_t i) {
  const auto byte = static_cast<uint8_t>(bytes[static_cast<size_t>(i / 2)]);
  return i % 2 == 0 ? byte & 15 : byte >> 4;
}

float ScaleAt(const PackedWeight& weight, int64_t i) {
  float scale = 0.0f;
  if (weight.scale_format == WeightFormat::kF8E4M3) {
    scale = E4M3ToFloat(static_cast<uint8_t>(weight.scales[static_cast<size_t>(i)]));
  } else {
    const int64_t bytes = BlockOf(weight.scale_format).bytes;
    DequantizeBlocks(weight.scale_format, weight.scales.data() + i * bytes, 1, &scale);
  }
  if (weight.format != PackedFormat::kNvfp4) return scale;
  return weight.global_divides ? scale / weight.global_scale : scale * weight.global_scale;
}

void RowScales(const PackedWeight& weight, int64_t row, std::vector<float>& scales) {
  const int64_t groups = weight.cols / weight.group;
  scales.resize(static_cast<size_t>(groups));
  for (int64_t g = 0; g < groups; ++g) {
    scales[static_cast<size_t>(g)] = ScaleAt(weight, weight.one_scale ? 0 : row * groups + g);
  }
}

int ZeroPoint(const PackedWeight& weight, int64_t row, int64_t group) {
  if (weight.zero_points.empty()) return 0;
  const int64_t groups = weight.cols / weight.group;
  const int64_t word = row / kPackedRows * groups + group;
  return Nibble(weight.zero_points, word * kPackedRows + row % kPackedRows) - kOffset;
}

// Decodes a row's integers minus their zero points. For kInt8 and kInt4.
void IntegerRow(const PackedWeight& weight, int64_t row, std::vector<int8_t>& q) {
  q.resize(static_cast<size_t>(weight.cols));
  if (weight.format == PackedFormat::kInt8) {
    std::memcpy(q.data(), weight.data.data() + row * weight.cols, q.size());
    return;
  }
  const auto row_bytes = weight.data.size() / static_cast<size_t>(weight.rows);
  const std::string_view packed = weight.data.substr(static_cast<size_t>(row) * row_bytes, row_bytes);
  for (int64_t g = 0; g < weight.cols / weight.group; ++g) {
    const int zero = ZeroPoint(weight, row, g) + kOffset;
    for (int64_t i = g * weight.group; i < (g + 1) * weight.group; ++i) {
      q[static_cast<size_t>(i)] = static_cast<int8_t>(Nibble(packed, i) - zero);
    }
  }
}

// Decodes a row without applying its scales.
void UnscaledRow(const PackedWeight& weight, int64_t row, float* out) {
  if (weight.format == PackedFormat::kFp8) {
    const char* from = weight.data.data() + row * weight.cols;
    for (int64_t i = 0; i < weight.cols; ++i) out[i] = E4M3ToFloat(static_cast<uint8_t>(from[i]));
  } else if (weight.format == PackedFormat::kNvfp4) {
    for (int64_t i = 0; i < weight.cols; ++i) {
      const int bits = Nibble(weight.data, row * weight.cols + i);
      const float magnitude = kE2M1[static_cast<size_t>(bits & 7)];
      out[i] = (bits & 8) != 0 ? -magnitude : magnitude;
    }
  } else {
    std::vector<int8_t> q;
    IntegerRow(weight, row, q);
    for (int64_t i = 0; i < weight.cols; ++i) out[i] = q[static_cast<size_t>(i)];
  }
}

std::string UnpackToFloats(const PackedWeight& weight) {
  std::string bytes(static_cast<size_t>(weight.rows * weight.cols) * sizeof(float), '\0');
  auto* out = reinterpret_cast<float*>(bytes.data());
  std::vector<float> scales;
  for (int64_t row = 0; row < weight.rows; ++row, out += weight.cols) {
    UnscaledRow(weight, row, out);
    RowScales(weight, row, scales);
    for (int64_t i = 0; i < weight.cols; ++i) out[i] *= scales[static_cast<size_t>(i / weight.group)];
  }
  return bytes;
}

// Q8_0 is a factor and 32 int8. Q4_0 is a factor and 32 4-bit integers plus 8; the first 16 are in the low halves of
// bytes.
std::string UnpackToBlocks(const PackedWeight& weight, WeightFormat format) {
  std::string bytes(static_cast<size_t>(weight.rows * RowBytes(format, weight.cols)), '\0');
  char* out = bytes.data();
  std::vector<float> scales;
  std::vector<int8_t> q;
  for (int64_t row = 0; row < weight.rows; ++row) {
    RowScales(weight, row, scales);
    IntegerRow(weight, row, q);
    for (int64_t i = 0; i < weight.cols; i += kBlock, out += BlockOf(format).bytes) {
      const uint16_t factor = FloatToF16(scales[static_cast<size_t>(i / weight.group)]);
      std::memcpy(out, &factor, sizeof(factor));
      const int8_t* of_block = q.data() + i;
      if (format == WeightFormat::kQ8_0) {
        std::memcpy(out + sizeof(factor), of_block, kBlock);
        continue;
      }
      for (int64_t j = 0; j < kBlock / 2; ++j) {
        const int low = of_block[j] + kOffset, high = of_block[j + kBlock / 2] + kOffset;
        out[sizeof(factor) + static_cast<size_t>(j)] = static_cast<char>(low | high << 4);
      }
    }
  }
  return bytes;
}

}  // namespace

std::string_view PackedFormatName(PackedFormat format) { return kNames[static_cast<size_t>(format)]; }

WeightFormat UnpackedFormat(const PackedWeight& weight) {
  if (weight.format == PackedFormat::kFp8) return weight.one_scale ? WeightFormat::kF8E4M3 : WeightFormat::kF32;
  if (weight.format == PackedFormat::kNvfp4 || weight.group % kBlock != 0) return WeightFormat::kF32;
  for (int64_t i = 0; i < weight.scale_count(); ++i) {
    const float scale = ScaleAt(weight, i);
    if (F16ToFloat(FloatToF16(scale)) != scale) return WeightFormat::kF32;
  }
  // Integers minus their zero points need five bits.
  const bool four_bits = weight.format == PackedFormat::kInt4 && weight.zero_points.empty();
  return four_bits ? WeightFormat::kQ4_0 : WeightFormat::kQ8_0;
}

absl::Status CheckFinite(const PackedWeight& weight) {
  for (int64_t i = 0; i < weight.scale_count(); ++i) {
    const float scale = ScaleAt(weight, i);
    if (std::isfinite(scale * kGreatest[static_cast<size_t>(weight.format)])) continue;
    return NotFinite(StrCat("scale ", i, " of ", PackedFormatName(weight.format), " weights is ", scale,
                            ", which is no number, infinite or too large"));
  }
  if (weight.format != PackedFormat::kFp8) return absl::OkStatus();
  for (size_t i = 0; i < weight.data.size(); ++i) {
    if ((static_cast<uint8_t>(weight.data[i]) & 0x7f) != 0x7f) continue;
    const auto element = static_cast<int64_t>(i);
    return NotFinite(StrCat("element [", element / weight.cols, ", ", element % weight.cols, "] is no number"));
  }
  return absl::OkStatus();
}

std::string Unpack(const PackedWeight& weight, WeightFormat format) {
  if (format == WeightFormat::kF32) return UnpackToFloats(weight);
  if (format != WeightFormat::kF8E4M3) return UnpackToBlocks(weight, format);
  const std::vector<float> scales(static_cast<size_t>(Fp8Blocks(weight.rows) * Fp8Blocks(weight.cols)),
                                  ScaleAt(weight, 0));
  return {reinterpret_cast<const char*>(scales.data()), scales.size() * sizeof(float)};
}

}  // namespace gdn
