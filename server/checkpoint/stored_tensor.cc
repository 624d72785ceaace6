#include "server/checkpoint/stored_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/string_cat.h"
#include "server/checkpoint/tensor_errors.h"

namespace gdn {
namespace {

void DecodeFp8(const StoredTensor& tensor, float* out) {
  const int64_t cols = tensor.shape[1];
  const std::vector<float> scales = FloatsOf(tensor.scales);
  for (int64_t i = 0; i < tensor.shape[0]; ++i) {
    DequantizeRow(WeightFormat::kF8E4M3, tensor.data.data() + i * cols, scales.data() + i / kFp8Block * Fp8Blocks(cols),
                  cols, out + i * cols);
  }
}

// Returns the index of the first block of a quantised tensor with a factor that is not finite; -1 if there is none.
int64_t FindBadBlock(const StoredTensor& tensor) {
  if (tensor.encoding == WeightFormat::kF8E4M3) {
    const std::vector<float> scales = FloatsOf(tensor.scales);
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

// The bits that show that an element is not finite: all bits of `exponent` are set. Adding `lowest`, the lowest of
// these bits, then carries into the sign bit, and into no other element.
struct ExponentBits {
  uint64_t exponent;  // for each element in eight bytes
  uint64_t lowest;
  uint64_t sign;
  int64_t bytes;  // of one element
};
ExponentBits ExponentOf(WeightFormat format) {
  if (format == WeightFormat::kF32) return {0x7f8000007f800000, 0x0080000000800000, 0x8000000080000000, 4};
  if (format == WeightFormat::kF16) return {0x7c007c007c007c00, 0x0400040004000400, 0x8000800080008000, 2};
  if (format == WeightFormat::kBF16) return {0x7f807f807f807f80, 0x0080008000800080, 0x8000800080008000, 2};
  // F8_E4M3 has no infinities; its two NaNs have all bits of the mantissa set too.
  return {0x7f7f7f7f7f7f7f7f, 0x0101010101010101, 0x8080808080808080, 1};
}

// Returns element `i` of a plain or F8_E4M3 tensor, without its scale.
float ElementAt(const StoredTensor& tensor, int64_t i) {
  if (tensor.encoding == WeightFormat::kF8E4M3) return E4M3ToFloat(static_cast<uint8_t>(tensor.data[i]));
  float value;
  DequantizeBlocks(tensor.encoding, tensor.data.data() + i * BlockOf(tensor.encoding).bytes, 1, &value);
  return value;
}

// Returns the first element from `from` on that is not finite, or -1. Looks at eight bytes at a time.
int64_t FindNotFinite(const StoredTensor& tensor, int64_t from) {
  const ExponentBits bits = ExponentOf(tensor.encoding);
  const int64_t count = tensor.ElementCount();
  const int64_t word_elements = static_cast<int64_t>(sizeof(uint64_t)) / bits.bytes;
  for (int64_t i = from; i < count;) {
    if (i + word_elements <= count) {
      uint64_t word;
      std::memcpy(&word, tensor.data.data() + i * bits.bytes, sizeof(word));
      if ((((word & bits.exponent) + bits.lowest) & bits.sign) == 0) {
        i += word_elements;
        continue;
      }
    }
    if (!std::isfinite(ElementAt(tensor, i))) return i;
    ++i;
  }
  return -1;
}

// Returns the index of an element in a tensor of this shape: "[3, 17]".
std::string IndexText(const std::vector<int64_t>& shape, int64_t element) {
  std::string text;
  for (size_t axis = shape.size(); axis-- > 0;) {
    text = StrCat(element % shape[axis], text.empty() ? "" : ", ", text);
    element /= shape[axis];
  }
  return StrCat("[", text, "]");
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

std::vector<float> FloatsOf(const TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.ElementCount()));
  ConvertToFloat(view.dtype, view.data.data(), values.size(), values.data());
  return values;
}

absl::Status CheckFinite(const StoredTensor& tensor, MinusInfinity minus_infinity) {
  if (tensor.packed != nullptr) return CheckFinite(*tensor.packed);
  if (!IsPlain(tensor.encoding)) {
    if (const int64_t block = FindBadBlock(tensor); block >= 0) {
      return NotFinite(StrCat("block ", block, " of ", WeightFormatName(tensor.encoding),
                              " has a factor that is infinite or no number"));
    }
    if (tensor.encoding != WeightFormat::kF8E4M3) return absl::OkStatus();  // integers times finite factors
  }
  for (int64_t i = FindNotFinite(tensor, 0); i >= 0; i = FindNotFinite(tensor, i + 1)) {
    const float value = ElementAt(tensor, i);
    if (minus_infinity == MinusInfinity::kTaken && value < 0.0f) continue;
    return NotFinite(StrCat("element ", IndexText(tensor.shape, i), " is ",
                            std::isnan(value) ? "no number"
                            : value < 0.0f    ? "-infinity"
                                              : "infinity"));
  }
  return absl::OkStatus();
}

StoredTensor Unpacked(const StoredTensor& tensor, std::deque<std::string>& made) {
  if (tensor.packed == nullptr) return tensor;
  StoredTensor unpacked = tensor;
  const std::string_view bytes = made.emplace_back(Unpack(*tensor.packed, tensor.encoding));
  if (tensor.encoding == WeightFormat::kF8E4M3) {
    unpacked.data = tensor.packed->data;
    unpacked.scales = {.dtype = DType::kF32, .shape = Fp8BlocksOf(tensor.shape), .data = bytes};
  } else {
    unpacked.data = bytes;
    unpacked.widened = tensor.encoding == WeightFormat::kF32;
  }
  return unpacked;
}

int64_t FileBytes(const StoredTensor& tensor) {
  if (tensor.packed != nullptr) {
    // For a slice, counts its share of the bytes.
    const int64_t whole = tensor.packed->rows * tensor.packed->cols;
    return static_cast<int64_t>(static_cast<double>(tensor.packed->file_bytes()) *
                                static_cast<double>(tensor.ElementCount()) / static_cast<double>(whole));
  }
  // A slice widens F8_E4M3 only, which has one byte for each weight.
  const auto bytes = tensor.widened ? static_cast<size_t>(tensor.ElementCount()) : tensor.data.size();
  return static_cast<int64_t>(bytes + tensor.scales.data.size());
}

void DecodeTensor(const StoredTensor& tensor, float* out) {
  if (tensor.encoding == WeightFormat::kF8E4M3) return DecodeFp8(tensor, out);
  DequantizeBlocks(tensor.encoding, tensor.data.data(), tensor.ElementCount() / BlockOf(tensor.encoding).weights, out);
}

}  // namespace gdn
