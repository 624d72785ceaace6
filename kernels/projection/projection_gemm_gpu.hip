// y = x W^T for the many rows of a prefill on the GPU.
//
// Order of a sum: features in order within slices of kDepth, slices in order; the number of rows has no part in it.
// Threads: 16 x 16 a block of kTileRows x kTileOutputs results, 4 rows x 8 outputs each, kept in registers twice: the
// slice's sum and the total (one running sum over thousands of features would err by 1e-6). Both operands lie in LDS
// with the feature as the slow index, so that a thread reads its values 16 bytes at a time.
// Resources: 25.6 KB of LDS; the next slice's loads are on their way during a slice. Bound by FMAs.

#include "kernels/gpu/launch.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/projection_args.h"
#include "kernels/projection/weight_vectors-inl.h"

namespace gdn::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kTileRows = 64;
constexpr int kTileOutputs = 128;
constexpr int kDepth = 32;
constexpr int kThreadRows = 4;
constexpr int kThreadOutputs = 8;
constexpr int kXStride = kTileRows + 4;
constexpr int kWStride = kTileOutputs + 4;
// Loads a thread makes for a slice, of 4 values of x and of 8 weights.
constexpr int kXLoads = kTileRows * kDepth / 4 / kThreads;
constexpr int kWLoads = kTileOutputs * kDepth / kWeightVector / kThreads;

struct Shared {
  LdsArray<float, kDepth * kXStride> x;
  LdsArray<float, kDepth * kWStride> w;
};

// A thread's share of a slice, between memory and LDS.
template <typename Weights, bool kVector>
struct Slice {
  Vec4 x[kXLoads];  // raw
  typename Weights::Raw w[kWLoads];

  __device__ __forceinline__ void Load(const ProjectionArgs& p, const ProjectionMatrix& m, int64_t first_row,
                                       int32_t first_output, int32_t depth) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kXLoads; ++i) {
      const int index = thread + i * kThreads;
      const int64_t row = first_row + index / (kDepth / 4);
      const int32_t f = depth + index % (kDepth / 4) * 4;
      x[i] = LoadRaw4(p.x, p.x_dtype, row * p.x_stride + f, row < p.rows ? p.features - f : 0, p.x_vector);
    }
#pragma unroll
    for (int i = 0; i < kWLoads; ++i) {
      const int index = thread + i * kThreads;
      const int32_t output = first_output + index / (kDepth / kWeightVector);
      const int32_t f = depth + index % (kDepth / kWeightVector) * kWeightVector;
      const auto* row = static_cast<const typename Weights::Element*>(m.weight) +
                        int64_t{output < m.outputs ? output : m.outputs - 1} * p.features;
      w[i] = LoadEight<Weights, kVector>(row + f, p.features - f);
    }
  }

  __device__ __forceinline__ void Store(const ProjectionArgs& p, Shared& s) const {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kXLoads; ++i) {
      const int index = thread + i * kThreads;
      const int place = index % (kDepth / 4) * 4 * kXStride + index / (kDepth / 4);
      const Vec4 wide = WidenRaw4(x[i], p.x_dtype);
      s.x[place] = wide.x;
      s.x[place + kXStride] = wide.y;
      s.x[place + 2 * kXStride] = wide.z;
      s.x[place + 3 * kXStride] = wide.w;
    }
#pragma unroll
    for (int i = 0; i < kWLoads; ++i) {
      const int index = thread + i * kThreads;
      const int place = index % (kDepth / kWeightVector) * kWeightVector * kWStride + index / (kDepth / kWeightVector);
      float wide[kWeightVector];
      Weights::Widen(w[i], wide);
#pragma unroll
      for (int j = 0; j < kWeightVector; ++j) s.w[place + j * kWStride] = wide[j];
    }
  }
};

// row[j] += x * w[j].
__device__ __forceinline__ void AddOuter(float (&row)[kThreadOutputs], float x, const Vec4& w0, const Vec4& w1) {
  row[0] = fmaf(x, w0.x, row[0]);
  row[1] = fmaf(x, w0.y, row[1]);
  row[2] = fmaf(x, w0.z, row[2]);
  row[3] = fmaf(x, w0.w, row[3]);
  row[4] = fmaf(x, w1.x, row[4]);
  row[5] = fmaf(x, w1.y, row[5]);
  row[6] = fmaf(x, w1.z, row[6]);
  row[7] = fmaf(x, w1.w, row[7]);
}

template <typename Weights, bool kVector>
__device__ __forceinline__ void Multiply(const ProjectionArgs& p, const ProjectionMatrix& m, int64_t first_row,
                                         int32_t first_output, Shared& s) {
  const int column = static_cast<int>(threadIdx.x) % 16 * 4;  // and column + 64: two neighbourly reads
  const int row = static_cast<int>(threadIdx.x) / 16 * kThreadRows;
  float total[kThreadRows][kThreadOutputs];
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
#pragma unroll
    for (int j = 0; j < kThreadOutputs; ++j) total[i][j] = 0.0f;
  }
  Slice<Weights, kVector> slice;
  slice.Load(p, m, first_row, first_output, 0);
  for (int32_t depth = 0; depth < p.features; depth += kDepth) {
    if (depth > 0) SyncThreads();
    slice.Store(p, s);
    SyncThreads();
    if (depth + kDepth < p.features) slice.Load(p, m, first_row, first_output, depth + kDepth);
    float sum[kThreadRows][kThreadOutputs];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
#pragma unroll
      for (int j = 0; j < kThreadOutputs; ++j) sum[i][j] = 0.0f;
    }
#pragma unroll 4
    for (int d = 0; d < kDepth; ++d) {
      const Vec4 x = s.x.Load4(d * kXStride + row);
      const Vec4 w0 = s.w.Load4(d * kWStride + column);
      const Vec4 w1 = s.w.Load4(d * kWStride + column + 64);
      AddOuter(sum[0], x.x, w0, w1);
      AddOuter(sum[1], x.y, w0, w1);
      AddOuter(sum[2], x.z, w0, w1);
      AddOuter(sum[3], x.w, w0, w1);
    }
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
#pragma unroll
      for (int j = 0; j < kThreadOutputs; ++j) total[i][j] += sum[i][j];
    }
  }
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    if (first_row + row + i >= p.rows) continue;
    const int64_t y_row = (first_row + row + i) * m.y_stride;
#pragma unroll
    for (int j = 0; j < kThreadOutputs; ++j) {
      const int32_t output = first_output + column + (j < 4 ? j : 60 + j);
      if (output < m.outputs) StoreElement(m.y, m.y_dtype, y_row + output, total[i][j]);
    }
  }
}

template <bool kVector>
__global__ __launch_bounds__(kThreads) void SequenceGemmKernel(ProjectionArgs p) {
  Shared& s = SharedMemory<Shared>();
  // Row tiles are the fastest index: those that run together read the same weights.
  const int32_t row_tile = static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(p.row_tiles));
  const int32_t tile = static_cast<int32_t>(blockIdx.x / static_cast<uint32_t>(p.row_tiles));
  ProjectionMatrix m = p.matrices[0];
#pragma unroll
  for (int i = 1; i < kMaxProjectionsPerLaunch; ++i) {
    if (tile >= p.matrices[i].first_tile) m = p.matrices[i];
  }
  const int64_t first_row = int64_t{row_tile} * kTileRows;
  const int32_t first_output = (tile - m.first_tile) * kTileOutputs;
  if (m.dtype == DType::kBF16) {
    Multiply<Bf16Weights, kVector>(p, m, first_row, first_output, s);
  } else if (m.dtype == DType::kF16) {
    Multiply<F16Weights, kVector>(p, m, first_row, first_output, s);
  } else {
    Multiply<F32Weights, kVector>(p, m, first_row, first_output, s);
  }
}

}  // namespace

absl::Status LaunchSequenceGemm(absl::Span<const ProjectionParams> params, const Stream& stream) {
  ProjectionArgs args = MakeProjectionArgs(params, kTileOutputs);
  args.row_tiles = static_cast<int32_t>(CeilDivide(args.rows, kTileRows));
  const auto kernel = WeightsAllowVectors(params) ? SequenceGemmKernel<true> : SequenceGemmKernel<false>;
  return Launch("projection_gemm", kernel, {int64_t{args.row_tiles} * args.output_tiles}, kThreads, stream, args);
}

}  // namespace gdn::gpu
