// Sums and maxima, of x or of |x - y| or (x - y)^2, on the GPU.
//
// Pass 1: a block of 256 threads takes 4096 elements, thread t those at t, t + 256, ...; a tree in LDS makes one double
// of them. Pass 2: one block does the same with those doubles. Resources: 2 KB LDS. Bound by memory.

#include "base/status_macros.h"
#include "kernels/common/contract.h"
#include "kernels/gpu/launch.h"
#include "kernels/primitives/reduce/reduce.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 256;

struct Shared {
  LdsArray<double, kThreads> values;
};

constexpr bool IsMaximum(ReduceOp op) { return op == ReduceOp::kMax || op == ReduceOp::kAbsDiffMax; }

template <ReduceOp kOp>
__device__ __forceinline__ double Neutral() {
  return IsMaximum(kOp) ? -static_cast<double>(BitsToFloat(0x7f800000u)) : 0.0;
}

template <ReduceOp kOp>
__device__ __forceinline__ double Combine(double a, double b) {
  if constexpr (IsMaximum(kOp)) return a > b || a != a ? a : b;
  return a + b;
}

template <ReduceOp kOp>
__device__ __forceinline__ double Element(const ReduceParams& p, int64_t i) {
  if constexpr (kOp == ReduceOp::kSum || kOp == ReduceOp::kMax) return p.x[i];
  const double difference = static_cast<double>(p.x[i]) - static_cast<double>(p.y[i]);
  if constexpr (kOp == ReduceOp::kSquaredDiff) return difference * difference;
  return fabs(difference);
}

// The block's result, in thread 0.
template <ReduceOp kOp>
__device__ __forceinline__ double ReduceBlock(double value) {
  Shared& s = SharedMemory<Shared>();
  const int thread = threadIdx.x;
  s.values[thread] = value;
  SyncThreads();
#pragma unroll
  for (int distance = kThreads / 2; distance > 0; distance /= 2) {
    if (thread < distance) {
      const double other = s.values[thread + distance];
      value = Combine<kOp>(value, other);
      s.values[thread] = value;
    }
    SyncThreads();
  }
  return value;
}

template <ReduceOp kOp>
__global__ __launch_bounds__(kThreads) void ReduceElementsKernel(ReduceParams p) {
  const int64_t first = int64_t{blockIdx.x} * kReduceBlockElements + threadIdx.x;
  double value = Neutral<kOp>();
#pragma unroll 4
  for (int i = 0; i < kReduceBlockElements / kThreads; ++i) {
    const int64_t at = first + i * kThreads;
    if (at < p.count) value = Combine<kOp>(value, Element<kOp>(p, at));
  }
  value = ReduceBlock<kOp>(value);
  if (threadIdx.x == 0) p.workspace[blockIdx.x] = value;
}

template <ReduceOp kOp>
__global__ __launch_bounds__(kThreads) void ReduceBlocksKernel(ReduceParams p, int64_t blocks) {
  double value = Neutral<kOp>();
  for (int64_t i = threadIdx.x; i < blocks; i += kThreads) {
    const double partial = p.workspace[i];
    value = Combine<kOp>(value, partial);
  }
  value = ReduceBlock<kOp>(value);
  if (threadIdx.x == 0) p.result[0] = static_cast<float>(value);
}

template <ReduceOp kOp>
absl::Status LaunchReduce(const ReduceParams& params, const Stream& stream) {
  const int64_t blocks = CeilDivide(params.count, kReduceBlockElements);
  GDN_RETURN_IF_ERROR(Launch("reduce_elements", ReduceElementsKernel<kOp>, {blocks}, kThreads, stream, params));
  return Launch("reduce_blocks", ReduceBlocksKernel<kOp>, {1}, kThreads, stream, params, blocks);
}

}  // namespace
}  // namespace gpu

absl::Status ReduceGpu(const ReduceParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateReduce(params));
  if (params.count > 0) GDN_RETURN_IF_ERROR(RequirePointer("Reduce", "workspace", params.workspace));
  using gpu::LaunchReduce;
  constexpr absl::Status (*kLaunchers[])(const ReduceParams&, const gpu::Stream&) = {
      LaunchReduce<ReduceOp::kSum>, LaunchReduce<ReduceOp::kMax>, LaunchReduce<ReduceOp::kAbsDiffSum>,
      LaunchReduce<ReduceOp::kAbsDiffMax>, LaunchReduce<ReduceOp::kSquaredDiff>};
  return kLaunchers[static_cast<int>(params.op)](params, stream);
}

}  // namespace gdn
