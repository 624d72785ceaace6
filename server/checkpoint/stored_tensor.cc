#include "server/checkpoint/stored_tensor.h"

#include <array>
#include <cmath>
#include <limits>

#include "server/checkpoint/gguf_blocks.h"

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

GgmlType GgmlTypeOf(Encoding encoding) {
  constexpr GgmlType kTypes[] = {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K};
  return kTypes[static_cast<size_t>(encoding) - static_cast<size_t>(Encoding::kQ8_0)];
}

void DecodeFp8(const StoredTensor& tensor, float* out) {
  const std::array<float, 256>& values = E4M3Table();
  const int64_t rows = tensor.shape[0];
  const int64_t cols = tensor.shape[1];
  std::vector<float> scales(static_cast<size_t>(tensor.scales.ElementCount()));
  ConvertToFloat(tensor.scales.dtype, tensor.scales.data.data(), scales.size(), scales.data());
  const int64_t blocks = tensor.scales.shape[1];
  for (int64_t i = 0; i < rows; ++i) {
    const auto* row = reinterpret_cast<const uint8_t*>(tensor.data.data()) + i * cols;
    const float* of_row = scales.data() + i / kFp8Block * blocks;
    for (int64_t j = 0; j < cols; ++j) out[i * cols + j] = values[row[j]] * of_row[j / kFp8Block];
  }
}

}  // namespace

std::string_view EncodingName(Encoding encoding) {
  constexpr std::string_view kNames[] = {"F32", "F16", "BF16", "F8_E4M3", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K"};
  return kNames[static_cast<size_t>(encoding)];
}

std::vector<int64_t> Fp8BlocksOf(const std::vector<int64_t>& shape) {
  return {(shape[0] + kFp8Block - 1) / kFp8Block, (shape[1] + kFp8Block - 1) / kFp8Block};
}

int64_t StoredTensor::ElementCount() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

StoredTensor PlainTensor(const TensorView& view) {
  const Encoding encoding = view.dtype == DType::kF32   ? Encoding::kF32
                            : view.dtype == DType::kF16 ? Encoding::kF16
                                                        : Encoding::kBF16;
  return {.encoding = encoding, .shape = view.shape, .data = view.data};
}

bool IsPlain(const StoredTensor& tensor) {
  return tensor.encoding == Encoding::kF32 || tensor.encoding == Encoding::kF16 || tensor.encoding == Encoding::kBF16;
}

DType LoadedDType(const StoredTensor& tensor) {
  return tensor.encoding == Encoding::kF16    ? DType::kF16
         : tensor.encoding == Encoding::kBF16 ? DType::kBF16
                                              : DType::kF32;
}

void DecodeTensor(const StoredTensor& tensor, float* out) {
  if (IsPlain(tensor)) {
    ConvertToFloat(LoadedDType(tensor), tensor.data.data(), static_cast<size_t>(tensor.ElementCount()), out);
  } else if (tensor.encoding == Encoding::kF8E4M3) {
    DecodeFp8(tensor, out);
  } else {
    DecodeGgml(GgmlTypeOf(tensor.encoding), tensor.data, out);
  }
}

float E4M3ToFloat(uint8_t bits) { return E4M3Table()[bits]; }

}  // namespace gdn
