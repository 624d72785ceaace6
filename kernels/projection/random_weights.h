// Random weights of any format, for tests and measurements: valid blocks of random bytes, scaled so that a row's sum of
// squares is about 1.
//
// Thread safety: plain values. Ownership: the matrix points into its RandomWeights.
//
//   const RandomWeights weights = MakeRandomWeights(WeightFormat::kQ4_K, rows, cols, /*seed=*/1);
//   params.weight = weights.matrix();
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "base/weight_format.h"
#include "kernels/projection/projection.h"

namespace gdn {

struct RandomWeights {
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<uint8_t> bytes;
  std::vector<float> scales;  // F8_E4M3 only

  WeightMatrix matrix() const {
    return {.format = format,
            .data = bytes.data(),
            .rows = rows,
            .cols = cols,
            .scales = scales.empty() ? nullptr : scales.data()};
  }
};

// Standard deviation of a block's weights if its factor d is 1, and the m that goes with it, which centres them.
struct BlockSpread {
  float deviation;
  float minimum;
};
constexpr BlockSpread SpreadOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ4_0:
      return {4.6f, 0.0f};
    case WeightFormat::kQ4_1:
      return {4.6f, -7.5f};
    case WeightFormat::kQ5_0:
      return {9.2f, 0.0f};
    case WeightFormat::kQ5_1:
      return {9.2f, -15.5f};
    case WeightFormat::kIQ4_NL:
      return {68.0f, 0.0f};
    case WeightFormat::kQ2_K:
      return {14.0f, 1.5f};
    case WeightFormat::kQ3_K:
      return {43.0f, 0.0f};
    case WeightFormat::kQ4_K:
      return {260.0f, 7.5f};
    case WeightFormat::kQ5_K:
      return {530.0f, 15.5f};
    case WeightFormat::kQ6_K:
      return {1370.0f, 0.0f};
    case WeightFormat::kIQ4_XS:
      return {1250.0f, 0.0f};
    case WeightFormat::kIQ3_S:
      return {160.0f, 0.0f};
    default:
      return {74.0f, 0.0f};  // Q8_0
  }
}

inline RandomWeights MakeRandomWeights(WeightFormat format, int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 engine(seed);
  RandomWeights weights{.format = format, .rows = rows, .cols = cols, .bytes = {}, .scales = {}};
  const float deviation = 1.0f / std::sqrt(static_cast<float>(cols));
  if (IsPlain(format)) {
    std::normal_distribution<float> normal(0.0f, deviation);
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (float& value : values) value = normal(engine);
    weights.bytes.resize(values.size() * DTypeSize(WidenedDType(format)));
    ConvertFromFloat(values.data(), values.size(), WidenedDType(format), weights.bytes.data());
    return weights;
  }
  weights.bytes.resize(static_cast<size_t>(rows * RowBytes(format, cols)));
  for (uint8_t& byte : weights.bytes) byte = static_cast<uint8_t>(engine());
  std::uniform_real_distribution<float> spread(0.5f, 1.5f);
  if (format == WeightFormat::kF8E4M3) {
    for (uint8_t& byte : weights.bytes) byte = (byte & 0x7f) == 0x7f ? 0 : byte;  // no NaN
    weights.scales.resize(static_cast<size_t>(Fp8Blocks(rows) * Fp8Blocks(cols)));
    for (float& scale : weights.scales) scale = spread(engine) * deviation / 110.0f;
    return weights;
  }
  const FactorOffsets factors = FactorsAt(format);
  const BlockSpread block = SpreadOf(format);
  const auto store = [](float value, uint8_t* at) {
    const uint16_t bits = FloatToF16(value);
    std::memcpy(at, &bits, sizeof(bits));
  };
  for (size_t at = 0; at < weights.bytes.size(); at += static_cast<size_t>(BlockOf(format).bytes)) {
    const float factor = spread(engine) * deviation / block.deviation;
    store(factor, &weights.bytes[at + static_cast<size_t>(factors.d)]);
    if (factors.m >= 0) store(factor * block.minimum, &weights.bytes[at + static_cast<size_t>(factors.m)]);
  }
  return weights;
}

}  // namespace gdn
