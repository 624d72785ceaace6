// y = f(x), a op b, and x times a row or column vector on the GPU.
//
// Threads: one for four neighbours (16-byte accesses where every pointer is aligned to them, else element by element),
// striding over the grid; the vector multiply by tiles of 16 x 64. Resources: registers only. Bound by memory.

#include "base/status_macros.h"
#include "kernels/gpu/gate_math.h"
#include "kernels/gpu/launch.h"
#include "kernels/gpu/matrix_tiles.h"
#include "kernels/primitives/elementwise/elementwise.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 256;

template <UnaryOp kOp>
__device__ __forceinline__ float Apply(float x, [[maybe_unused]] float factor) {
  if constexpr (kOp == UnaryOp::kExp) return expf(x);
  if constexpr (kOp == UnaryOp::kLog) return logf(x);
  if constexpr (kOp == UnaryOp::kSigmoid) return Sigmoid(x);
  if constexpr (kOp == UnaryOp::kSilu) return Silu(x);
  if constexpr (kOp == UnaryOp::kSoftplus) return Softplus(x);
  if constexpr (kOp == UnaryOp::kNeg) return -x;
  if constexpr (kOp == UnaryOp::kScale) return factor * x;
}

template <BinaryOp kOp>
__device__ __forceinline__ float Apply(float a, float b) {
  if constexpr (kOp == BinaryOp::kAdd) return a + b;
  if constexpr (kOp == BinaryOp::kSub) return a - b;
  if constexpr (kOp == BinaryOp::kMul) return a * b;
  if constexpr (kOp == BinaryOp::kAbsDiff) return fabsf(a - b);
  if constexpr (kOp == BinaryOp::kSquaredDiff) return (a - b) * (a - b);
}

// Calls four(i) for whole groups of four neighbours, where `vector` allows them, and one(i) for the elements left.
template <typename Four, typename One>
__device__ __forceinline__ void ForEachFour(int64_t count, bool vector, const Four& four, const One& one) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  const int64_t groups = vector ? count / 4 : 0;
  for (int64_t i = thread; i < groups; i += threads) four(4 * i);
  for (int64_t i = 4 * groups + thread; i < count; i += threads) one(i);
}

template <UnaryOp kOp>
__global__ __launch_bounds__(kThreads) void UnaryKernel(UnaryParams p, bool vector) {
  ForEachFour(
      p.count, vector,
      [&](int64_t i) {
        const Vec4 x = Load4(p.x + i);
        Store4(p.y + i, {Apply<kOp>(x.x, p.factor), Apply<kOp>(x.y, p.factor), Apply<kOp>(x.z, p.factor),
                         Apply<kOp>(x.w, p.factor)});
      },
      [&](int64_t i) { p.y[i] = Apply<kOp>(p.x[i], p.factor); });
}

template <BinaryOp kOp>
__global__ __launch_bounds__(kThreads) void BinaryKernel(BinaryParams p, bool vector) {
  ForEachFour(
      p.count, vector,
      [&](int64_t i) {
        const Vec4 a = Load4(p.a + i);
        const Vec4 b = Load4(p.b + i);
        Store4(p.y + i, {Apply<kOp>(a.x, b.x), Apply<kOp>(a.y, b.y), Apply<kOp>(a.z, b.z), Apply<kOp>(a.w, b.w)});
      },
      [&](int64_t i) { p.y[i] = Apply<kOp>(p.a[i], p.b[i]); });
}

__global__ __launch_bounds__(kMatrixTileThreads) void VectorMultiplyKernel(VectorMultiplyParams p) {
  ForEachElement(p.rows, p.cols, [&](int64_t, int64_t row, int64_t col) {
    const float factor = p.v[(p.vector == VectorKind::kRow ? col : row) * p.v_stride];
    p.y[row * p.y_stride + col] = p.x[row * p.x_stride + col] * factor;
  });
}

template <typename Params>
struct NamedKernel {
  const char* name;
  void (*kernel)(Params, bool);
};

// In the operations' order.
constexpr NamedKernel<UnaryParams> kUnaryKernels[] = {
    {"exp", UnaryKernel<UnaryOp::kExp>},           {"log", UnaryKernel<UnaryOp::kLog>},
    {"sigmoid", UnaryKernel<UnaryOp::kSigmoid>},   {"silu", UnaryKernel<UnaryOp::kSilu>},
    {"softplus", UnaryKernel<UnaryOp::kSoftplus>}, {"neg", UnaryKernel<UnaryOp::kNeg>},
    {"scale", UnaryKernel<UnaryOp::kScale>}};
constexpr NamedKernel<BinaryParams> kBinaryKernels[] = {{"add", BinaryKernel<BinaryOp::kAdd>},
                                                        {"sub", BinaryKernel<BinaryOp::kSub>},
                                                        {"mul", BinaryKernel<BinaryOp::kMul>},
                                                        {"abs_diff", BinaryKernel<BinaryOp::kAbsDiff>},
                                                        {"squared_diff", BinaryKernel<BinaryOp::kSquaredDiff>}};

template <typename Params>
absl::Status LaunchStrided(const NamedKernel<Params>& named, const Params& params, bool vector, const Stream& stream) {
  return Launch(named.name, named.kernel, {StridedBlocks(params.count, int64_t{kThreads} * 4, stream)}, kThreads,
                stream, params, vector);
}

}  // namespace
}  // namespace gpu

absl::Status UnaryGpu(const UnaryParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateUnary(params));
  return gpu::LaunchStrided(gpu::kUnaryKernels[static_cast<int>(params.op)], params, gpu::Aligned16(params.x, params.y),
                            stream);
}

absl::Status BinaryGpu(const BinaryParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateBinary(params));
  return gpu::LaunchStrided(gpu::kBinaryKernels[static_cast<int>(params.op)], params,
                            gpu::Aligned16(params.a, params.b, params.y), stream);
}

absl::Status VectorMultiplyGpu(const VectorMultiplyParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateVectorMultiply(params));
  return gpu::Launch("vector_multiply", gpu::VectorMultiplyKernel, {gpu::MatrixTiles(1, params.rows, params.cols)},
                     gpu::kMatrixTileThreads, stream, params);
}

}  // namespace gdn
