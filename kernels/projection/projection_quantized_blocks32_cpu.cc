// Quantised weights in blocks of 32, and F8_E4M3, on the CPU: projection_quantized_cpu-inl.h for these formats.

#include "kernels/projection/quantized_functions.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/projection/projection_quantized_blocks32_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/projection/projection_quantized_cpu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

void DequantizeRows32(const WeightMatrix& weight, int64_t first, int64_t count, float* out) {
  DequantizeFormats<WeightFormat::kF8E4M3, WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_1,
                    WeightFormat::kQ5_0, WeightFormat::kQ5_1, WeightFormat::kIQ4_NL>(weight, first, count, out);
}

void ProjectRows32(const WeightMatrix& weight, int64_t rows, const float* x, int64_t begin, int64_t end, float* y,
                   int64_t y_stride) {
  ProjectFormats<WeightFormat::kF8E4M3, WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_1,
                 WeightFormat::kQ5_0, WeightFormat::kQ5_1, WeightFormat::kIQ4_NL>(weight, rows, x, begin, end, y,
                                                                                  y_stride);
}

int64_t TileRows() { return kTileRows; }

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {

HWY_EXPORT(DequantizeRows32);
HWY_EXPORT(ProjectRows32);
HWY_EXPORT(TileRows);

int64_t QuantizedTileRows() { return HWY_DYNAMIC_DISPATCH(TileRows)(); }

void DequantizeBlocks32Rows(const WeightMatrix& weight, int64_t first, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(DequantizeRows32)(weight, first, count, out);
}

void ProjectRowsOfBlocks32(const WeightMatrix& weight, int64_t rows, const float* x, int64_t begin, int64_t end,
                           float* y, int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(ProjectRows32)(weight, rows, x, begin, end, y, y_stride);
}

}  // namespace gdn
#endif  // HWY_ONCE
