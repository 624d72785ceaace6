// Quantised weights on the CPU: products of few rows with weights that are decoded in registers, and matrices of
// float32 for everything else.

#include "kernels/projection/projection_paths.h"
#include "kernels/projection/quantized_functions.h"

namespace gdn {
namespace {

// Rows of no whole chunk, which F8_E4M3 alone can have, are decoded one weight after the other.
bool HasWholeChunks(const WeightMatrix& weight) { return weight.cols % 32 == 0; }
bool HasBlocks256(const WeightMatrix& weight) { return BlockOf(weight.format).weights == 256; }

}  // namespace

bool TakesFewQuantizedRows(const WeightMatrix& weight, int64_t rows) {
  return !IsPlain(weight.format) && HasWholeChunks(weight) && rows <= MostFewQuantizedRows();
}

void ProjectFewQuantizedRows(const WeightMatrix& weight, int64_t rows, const float* packed, int64_t begin, int64_t end,
                             float* y, int64_t y_stride) {
  const auto project = HasBlocks256(weight) ? ProjectFewRowsOfBlocks256 : ProjectFewRowsOfBlocks32;
  project(weight, rows, packed, begin, end, y, y_stride);
}

void WidenWeightRows(const WeightMatrix& weight, int64_t first, int64_t count, float* out) {
  if (IsPlain(weight.format)) {
    const char* data = static_cast<const char*>(weight.data) + first * RowBytes(weight.format, weight.cols);
    ConvertToFloat(WidenedDType(weight.format), data, static_cast<size_t>(count * weight.cols), out);
  } else if (HasWholeChunks(weight)) {
    const auto dequantize = HasBlocks256(weight) ? DequantizeBlocks256Rows : DequantizeBlocks32Rows;
    dequantize(weight, first, count, out);
  } else {
    for (int64_t row = 0; row < count; ++row) WeightRow(weight, first + row, out + row * weight.cols);
  }
}

}  // namespace gdn
