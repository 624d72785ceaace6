// The split of the in-projections' outputs on the GPU: a permutation of each row.
//
// Threads: one an element of a row of [mixed_qkv | z | b | a], striding over rows; four elements where head sizes and
// addresses allow 16-byte accesses. Resources: registers only. Bound by memory.

#include <cstdint>

#include "kernels/gpu/launch.h"
#include "kernels/qkvz_split/qkvz_index-inl.h"
#include "kernels/qkvz_split/qkvz_split.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 256;

struct SplitArgs {
  QkvzIndex at;
  int64_t rows;
  int32_t channels;  // C
  const float* qkvz;
  const float* ba;
  float* mixed_qkv;
  float* z;
  float* b;
  float* a;
};

// Element `e` of qkvz's features in output order, and where it goes.
__device__ __forceinline__ float* Target(const SplitArgs& p, int64_t row, int32_t e, int32_t* source) {
  if (e < p.channels) {
    *source = p.at.Mixed(e);
    return p.mixed_qkv + row * p.channels + e;
  }
  *source = p.at.Z(e - p.channels);
  return p.z + row * p.at.ValueFeatures() + (e - p.channels);
}

// Grid: x over the elements of a row, y over rows.
template <bool kVector>
__global__ __launch_bounds__(kThreads) void QkvzSplitKernel(SplitArgs p) {
  BeginEarly();
  constexpr int kElements = kVector ? 4 : 1;
  const int32_t features = p.channels + p.at.ValueFeatures();
  const int32_t i = static_cast<int32_t>(blockIdx.x) * kThreads + static_cast<int32_t>(threadIdx.x);
  const int32_t heads = p.at.value_heads;
  for (int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    const float* qkvz = p.qkvz + row * features;
    if (i < features / kElements) {
      int32_t source;
      float* target = Target(p, row, i * kElements, &source);
      if constexpr (kVector) {
        Store4(target, Load4(qkvz + source));
      } else {
        *target = qkvz[source];
      }
      continue;
    }
    const int32_t gate = i - features / kElements;
    if (gate >= 2 * heads) continue;
    const float* ba = p.ba + row * 2 * heads;
    if (gate < heads) {
      p.b[row * heads + gate] = ba[p.at.B(gate)];
    } else {
      p.a[row * heads + gate - heads] = ba[p.at.A(gate - heads)];
    }
  }
}

}  // namespace
}  // namespace gpu

absl::Status QkvzSplitGpu(const QkvzSplitParams& params, const gpu::Stream& stream) {
  const LayerDims& dims = params.dims;
  const gpu::SplitArgs args{.at = gpu::MakeQkvzIndex(dims, params.layout),
                            .rows = params.rows,
                            .channels = static_cast<int32_t>(dims.conv_channels()),
                            .qkvz = params.qkvz,
                            .ba = params.ba,
                            .mixed_qkv = params.mixed_qkv,
                            .z = params.z,
                            .b = params.b,
                            .a = params.a};
  const bool vector =
      dims.key_dim % 4 == 0 && dims.value_dim % 4 == 0 && gpu::Aligned16(params.qkvz, params.mixed_qkv, params.z);
  const int64_t elements = (dims.conv_channels() + dims.value_features()) / (vector ? 4 : 1) + 2 * dims.value_heads;
  const gpu::Grid grid{
      .x = gpu::CeilDivide(elements, gpu::kThreads), .y = params.rows < 4096 ? params.rows : 4096, .early = true};
  const auto kernel = vector ? gpu::QkvzSplitKernel<true> : gpu::QkvzSplitKernel<false>;
  return gpu::Launch("qkvz_split", kernel, grid, gpu::kThreads, stream, args);
}

}  // namespace gdn
