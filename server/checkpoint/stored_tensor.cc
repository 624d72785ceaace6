#include "server/checkpoint/stored_tensor.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/string_cat.h"

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

// The number of the block, counted over the tensor, whose factors are not all finite; -1 if there is none.
int64_t FindBadBlock(const StoredTensor& tensor) {
  if (tensor.encoding == WeightFormat::kF8E4M3) {
    const std::vector<float> scales = ScalesOf(tensor);
    const auto bad = std::find_if(scales.begin(), scales.end(), [](float scale) { return !std::isfinite(scale); });
    return bad == scales.end() ? -1 : bad - scales.begin();
  }
  const WeightBlock size = BlockOf(tensor.encoding);
  const int64_t count = tensor.ElementCount() / size.weights;
  for (int64_t i = 0; i < count; ++i) {
    if (!HasFiniteFactors(tensor.encoding, tensor.data.data() + i * size.bytes)) return i;
  }
  return -1;
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

absl::Status CheckQuantisation(const StoredTensor& tensor) {
  if (IsPlain(tensor.encoding)) return absl::OkStatus();
  const int64_t block = FindBadBlock(tensor);
  if (block < 0) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData,
      StrCat("block ", block, " of ", WeightFormatName(tensor.encoding),
             " has a factor that is infinite or no number; the file is damaged: fetch or convert it anew"));
}

void DecodeTensor(const StoredTensor& tensor, float* out) {
  if (tensor.encoding == WeightFormat::kF8E4M3) return DecodeFp8(tensor, out);
  DequantizeBlocks(tensor.encoding, tensor.data.data(), tensor.ElementCount() / BlockOf(tensor.encoding).weights, out);
}

}  // namespace gdn
