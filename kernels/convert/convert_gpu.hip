// Elements from one dtype to another on the GPU, four a thread. Bound by memory.

#include "base/status_macros.h"
#include "kernels/convert/convert.h"
#include "kernels/gpu/launch.h"
#include "kernels/gpu/typed_elements.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 256;

struct ConvertArgs {
  const void* x;
  void* y;
  int64_t count;
  DType x_dtype;
  DType y_dtype;
  bool vector;
};

__global__ __launch_bounds__(kThreads) void ConvertKernel(ConvertArgs p) {
  const int64_t step = int64_t{4} * kThreads * gridDim.x;
  for (int64_t i = 4 * (int64_t{kThreads} * blockIdx.x + threadIdx.x); i < p.count; i += step) {
    const int32_t left = p.count - i < 4 ? static_cast<int32_t>(p.count - i) : 4;
    const bool vector = p.vector && left == 4;
    const Vec4 v = WidenRaw4(LoadRaw4(p.x, p.x_dtype, i, left, vector), p.x_dtype);
    if (vector) {
      StoreElements4(p.y, p.y_dtype, i, v);
      continue;
    }
    StoreElement(p.y, p.y_dtype, i, v.x);
    if (left > 1) StoreElement(p.y, p.y_dtype, i + 1, v.y);
    if (left > 2) StoreElement(p.y, p.y_dtype, i + 2, v.z);
    if (left > 3) StoreElement(p.y, p.y_dtype, i + 3, v.w);
  }
}

}  // namespace
}  // namespace gpu

absl::Status ConvertGpu(const ConvertParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateConvert(params));
  const gpu::ConvertArgs args{
      .x = params.x.data,
      .y = params.y.data,
      .count = params.count,
      .x_dtype = params.x.dtype,
      .y_dtype = params.y.dtype,
      .vector = gpu::AllowsRaw4(params.x.data, params.x.dtype, 0) && gpu::AllowsRaw4(params.y.data, params.y.dtype, 0)};
  const int64_t blocks = gpu::StridedBlocks(params.count, 4 * gpu::kThreads, stream);
  return gpu::Launch("convert", gpu::ConvertKernel, {blocks}, gpu::kThreads, stream, args);
}

}  // namespace gdn
