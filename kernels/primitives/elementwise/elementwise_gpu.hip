// y = f(x), a op b, factor * x, x times a row or column vector, and bf16 / f16 to and from float32, on the GPU.
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
__device__ __forceinline__ float Apply(float x) {
  if constexpr (kOp == UnaryOp::kExp) return expf(x);
  if constexpr (kOp == UnaryOp::kLog) return logf(x);
  if constexpr (kOp == UnaryOp::kSigmoid) return Sigmoid(x);
  if constexpr (kOp == UnaryOp::kSilu) return Silu(x);
  if constexpr (kOp == UnaryOp::kSoftplus) return Softplus(x);
  if constexpr (kOp == UnaryOp::kNeg) return -x;
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
        Store4(p.y + i, {Apply<kOp>(x.x), Apply<kOp>(x.y), Apply<kOp>(x.z), Apply<kOp>(x.w)});
      },
      [&](int64_t i) { p.y[i] = Apply<kOp>(p.x[i]); });
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

__global__ __launch_bounds__(kThreads) void ScaleKernel(ScaleParams p, bool vector) {
  ForEachFour(
      p.count, vector,
      [&](int64_t i) {
        const Vec4 x = Load4(p.x + i);
        Store4(p.y + i, {p.factor * x.x, p.factor * x.y, p.factor * x.z, p.factor * x.w});
      },
      [&](int64_t i) { p.y[i] = p.factor * p.x[i]; });
}

__global__ __launch_bounds__(kMatrixTileThreads) void VectorMultiplyKernel(VectorMultiplyParams p) {
  ForEachElement(p.rows, p.cols, [&](int64_t, int64_t row, int64_t col) {
    const float factor = p.v[(p.vector == VectorKind::kRow ? col : row) * p.v_stride];
    p.y[row * p.y_stride + col] = p.x[row * p.x_stride + col] * factor;
  });
}

// Four 16-bit numbers, the first in the lowest bits.
struct alignas(8) Halves {
  uint32_t low, high;
};

template <DType kHalf>
__device__ __forceinline__ float FromHalf(uint32_t bits) {
  const uint16_t half = static_cast<uint16_t>(bits);
  return kHalf == DType::kBF16 ? FromBf16(half) : FromF16(half);
}
template <DType kHalf>
__device__ __forceinline__ uint32_t ToHalf(float x) {
  return kHalf == DType::kBF16 ? ToBf16(x) : ToF16(x);
}

template <DType kHalf>
__global__ __launch_bounds__(kThreads) void FromHalfKernel(ConvertParams p, bool vector) {
  const uint16_t* x = static_cast<const uint16_t*>(p.x);
  float* y = static_cast<float*>(p.y);
  ForEachFour(
      p.count, vector,
      [&](int64_t i) {
        const Halves h = *reinterpret_cast<const Halves*>(x + i);
        Store4(y + i, {FromHalf<kHalf>(h.low), FromHalf<kHalf>(h.low >> 16), FromHalf<kHalf>(h.high),
                       FromHalf<kHalf>(h.high >> 16)});
      },
      [&](int64_t i) { y[i] = FromHalf<kHalf>(x[i]); });
}

template <DType kHalf>
__global__ __launch_bounds__(kThreads) void ToHalfKernel(ConvertParams p, bool vector) {
  const float* x = static_cast<const float*>(p.x);
  uint16_t* y = static_cast<uint16_t*>(p.y);
  ForEachFour(
      p.count, vector,
      [&](int64_t i) {
        const Vec4 v = Load4(x + i);
        *reinterpret_cast<Halves*>(y + i) = {ToHalf<kHalf>(v.x) | (ToHalf<kHalf>(v.y) << 16),
                                             ToHalf<kHalf>(v.z) | (ToHalf<kHalf>(v.w) << 16)};
      },
      [&](int64_t i) { y[i] = static_cast<uint16_t>(ToHalf<kHalf>(x[i])); });
}

bool Aligned(const void* a, const void* b, const void* c = nullptr) {
  return ((reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) | reinterpret_cast<uintptr_t>(c)) & 15) == 0;
}

template <typename Params>
absl::Status LaunchStrided(const char* name, void (*kernel)(Params, bool), const Params& params, bool vector,
                           const Stream& stream) {
  return Launch(name, kernel, {StridedBlocks(params.count, int64_t{kThreads} * 4, stream)}, kThreads, stream, params,
                vector);
}

}  // namespace
}  // namespace gpu

absl::Status UnaryGpu(const UnaryParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateUnary(params));
  const bool vector = gpu::Aligned(params.x, params.y);
  const auto launch = [&](const char* name, void (*kernel)(UnaryParams, bool)) {
    return gpu::LaunchStrided(name, kernel, params, vector, stream);
  };
  switch (params.op) {
    case UnaryOp::kExp:
      return launch("exp", gpu::UnaryKernel<UnaryOp::kExp>);
    case UnaryOp::kLog:
      return launch("log", gpu::UnaryKernel<UnaryOp::kLog>);
    case UnaryOp::kSigmoid:
      return launch("sigmoid", gpu::UnaryKernel<UnaryOp::kSigmoid>);
    case UnaryOp::kSilu:
      return launch("silu", gpu::UnaryKernel<UnaryOp::kSilu>);
    case UnaryOp::kSoftplus:
      return launch("softplus", gpu::UnaryKernel<UnaryOp::kSoftplus>);
    case UnaryOp::kNeg:
      return launch("neg", gpu::UnaryKernel<UnaryOp::kNeg>);
  }
  return absl::InternalError("unary: no such operation");
}

absl::Status BinaryGpu(const BinaryParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateBinary(params));
  const bool vector = gpu::Aligned(params.a, params.b, params.y);
  const auto launch = [&](const char* name, void (*kernel)(BinaryParams, bool)) {
    return gpu::LaunchStrided(name, kernel, params, vector, stream);
  };
  switch (params.op) {
    case BinaryOp::kAdd:
      return launch("add", gpu::BinaryKernel<BinaryOp::kAdd>);
    case BinaryOp::kSub:
      return launch("sub", gpu::BinaryKernel<BinaryOp::kSub>);
    case BinaryOp::kMul:
      return launch("mul", gpu::BinaryKernel<BinaryOp::kMul>);
    case BinaryOp::kAbsDiff:
      return launch("abs_diff", gpu::BinaryKernel<BinaryOp::kAbsDiff>);
    case BinaryOp::kSquaredDiff:
      return launch("squared_diff", gpu::BinaryKernel<BinaryOp::kSquaredDiff>);
  }
  return absl::InternalError("binary: no such operation");
}

absl::Status ScaleGpu(const ScaleParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateScale(params));
  return gpu::LaunchStrided("scale", gpu::ScaleKernel, params, gpu::Aligned(params.x, params.y), stream);
}

absl::Status VectorMultiplyGpu(const VectorMultiplyParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateVectorMultiply(params));
  return gpu::Launch("vector_multiply", gpu::VectorMultiplyKernel, {gpu::MatrixTiles(1, params.rows, params.cols)},
                     gpu::kMatrixTileThreads, stream, params);
}

absl::Status ConvertGpu(const ConvertParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateConvert(params));
  const bool vector = gpu::Aligned(params.x, params.y);
  const auto launch = [&](const char* name, void (*kernel)(ConvertParams, bool)) {
    return gpu::LaunchStrided(name, kernel, params, vector, stream);
  };
  if (params.from == DType::kBF16) return launch("bf16_to_f32", gpu::FromHalfKernel<DType::kBF16>);
  if (params.from == DType::kF16) return launch("f16_to_f32", gpu::FromHalfKernel<DType::kF16>);
  if (params.to == DType::kBF16) return launch("f32_to_bf16", gpu::ToHalfKernel<DType::kBF16>);
  return launch("f32_to_f16", gpu::ToHalfKernel<DType::kF16>);
}

}  // namespace gdn
