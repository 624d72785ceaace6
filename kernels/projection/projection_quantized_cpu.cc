// Quantised weights on the CPU: products with weights that are decoded in registers, and matrices of float32 for
// everything else.

#include "kernels/projection/projection_paths.h"
#include "kernels/projection/quantized_functions.h"

namespace gdn {
namespace {

// How often a weight is decoded before one copy in float32 for all rows is faster: measured with 16 and 32 registers.
// To read IQ3_S's table costs more than that copy.
int64_t MostDecodings(WeightFormat format) { return format == WeightFormat::kIQ3_S ? 1 : 3; }

// Rows of no whole chunk, which F8_E4M3 alone can have, are decoded one weight after the other.
bool HasWholeChunks(const WeightMatrix& weight) { return weight.cols % 32 == 0; }
bool HasBlocks256(const WeightMatrix& weight) { return BlockOf(weight.format).weights == 256; }

}  // namespace

bool DecodesInRegisters(const WeightMatrix& weight, int64_t rows) {
  return !IsPlain(weight.format) && HasWholeChunks(weight) &&
         rows <= MostDecodings(weight.format) * QuantizedTileRows();
}

void ProjectQuantizedRows(const WeightMatrix& weight, int64_t rows, const float* packed, int64_t begin, int64_t end,
                          float* y, int64_t y_stride) {
  const auto project = HasBlocks256(weight) ? ProjectRowsOfBlocks256 : ProjectRowsOfBlocks32;
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
