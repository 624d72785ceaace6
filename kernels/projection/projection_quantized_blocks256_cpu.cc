// Quantised weights in blocks of 256 on the CPU: projection_quantized_cpu-inl.h for these formats.

#include "kernels/projection/quantized_functions.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/projection/projection_quantized_blocks256_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/projection/projection_quantized_cpu-inl.h"
#include "kernels/projection/quantized_blocks256-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

void DequantizeRows256(const WeightMatrix& weight, int64_t first, int64_t count, float* out) {
  DequantizeFormats<WeightFormat::kQ2_K, WeightFormat::kQ3_K, WeightFormat::kQ4_K, WeightFormat::kQ5_K,
                    WeightFormat::kQ6_K, WeightFormat::kIQ4_XS, WeightFormat::kIQ3_S>(weight, first, count, out);
}

void ProjectRows256(const WeightMatrix& weight, int64_t rows, const float* x, int64_t begin, int64_t end, float* y,
                    int64_t y_stride) {
  ProjectFormats<WeightFormat::kQ2_K, WeightFormat::kQ3_K, WeightFormat::kQ4_K, WeightFormat::kQ5_K,
                 WeightFormat::kQ6_K, WeightFormat::kIQ4_XS, WeightFormat::kIQ3_S>(weight, rows, x, begin, end, y,
                                                                                   y_stride);
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {

HWY_EXPORT(DequantizeRows256);
HWY_EXPORT(ProjectRows256);

void DequantizeBlocks256Rows(const WeightMatrix& weight, int64_t first, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(DequantizeRows256)(weight, first, count, out);
}

void ProjectRowsOfBlocks256(const WeightMatrix& weight, int64_t rows, const float* x, int64_t begin, int64_t end,
                            float* y, int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(ProjectRows256)(weight, rows, x, begin, end, y, y_stride);
}

}  // namespace gdn
#endif  // HWY_ONCE
