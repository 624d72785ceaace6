#include "server/checkpoint/stored_tensor.h"

namespace gdn {
namespace {

void DecodeFp8(const StoredTensor& tensor, float* out) {
  const int64_t cols = tensor.shape[1];
  const std::vector<float> scales = ScalesOf(tensor);
  for (int64_t i = 0; i < tensor.shape[0]; ++i) {
    DequantizeRow(WeightFormat::kF8E4M3, tensor.data.data() + i * cols, scales.data() + i / kFp8Block * Fp8Blocks(cols),
                  cols, out + i * cols);
  }
}

}  // namespace

std::vector<int64_t> Fp8BlocksOf(const std::vector<int64_t>& shape) {
  return {Fp8Blocks(shape[0]), Fp8Blocks(shape[1])};
}

int64_t StoredTensor::ElementCount() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

StoredTensor PlainTensor(const TensorView& view) {
  return {.encoding = FormatOf(view.dtype), .shape = view.shape, .data = view.data};
}

std::vector<float> ScalesOf(const StoredTensor& tensor) {
  std::vector<float> scales(static_cast<size_t>(tensor.scales.ElementCount()));
  ConvertToFloat(tensor.scales.dtype, tensor.scales.data.data(), scales.size(), scales.data());
  return scales;
}

void DecodeTensor(const StoredTensor& tensor, float* out) {
  if (tensor.encoding == WeightFormat::kF8E4M3) return DecodeFp8(tensor, out);
  DequantizeBlocks(tensor.encoding, tensor.data.data(), tensor.ElementCount() / BlockOf(tensor.encoding).weights, out);
}

}  // namespace gdn
