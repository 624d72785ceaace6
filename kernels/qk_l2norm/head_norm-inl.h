// Device code: the norm of a head that is spread over kHeadLanes lanes, for q and k and for the gated RMSNorm.
//
// Element e belongs to lane e / 4 % kHeadLanes of its group. Sums are double, which the square of a float32 cannot
// overflow, in one order: a lane's elements in sequence, then the lanes' butterfly.
// Thread safety: pure functions; wave.h's rules apply to HeadSum (every lane of the wave must take part).
//
//   double sum = 0.0;
//   for (...) sum = AddSquare(sum, x[e]);
//   const float factor = L2NormFactor(HeadSum<kWave>(sum), scale);
#pragma once

#include "kernels/gpu/wave.h"
#include "kernels/qk_l2norm/qk_l2norm.h"

namespace gdn::gpu {

inline constexpr int kHeadLanes = 32;

// Most elements of a head that stays in its lanes' registers, one vector of four each.
inline constexpr int kRegisterHeadDim = kHeadLanes * 4;

__device__ __forceinline__ double AddSquare(double sum, float x) {
  return fma(static_cast<double>(x), static_cast<double>(x), sum);
}

__device__ __forceinline__ double AddSquares(double sum, const Vec4& x) {
  return AddSquare(AddSquare(AddSquare(AddSquare(sum, x.x), x.y), x.z), x.w);
}

// Returns to each lane the total of the sums of its head's kHeadLanes lanes. Every lane of the wave calls.
template <int kWave>
__device__ __forceinline__ double HeadSum(double sum) {
  return GroupSum<kHeadLanes, kWave>(sum);
}

// Calls body(e) for this lane's elements e < dim of a head, in order; `lane` is 0 .. kHeadLanes - 1.
template <typename Body>
__device__ __forceinline__ void ForEachOfLane(int lane, int dim, const Body& body) {
  for (int first = 4 * lane; first < dim; first += 4 * kHeadLanes) {
    const int end = first + 4 < dim ? first + 4 : dim;
    for (int e = first; e < end; ++e) body(e);
  }
}

// Returns scale / sqrt(sum + kL2NormEpsilon), the factor of each element of a head whose squares sum to `sum`.
__device__ __forceinline__ float L2NormFactor(double sum, float scale) {
  return static_cast<float>(static_cast<double>(scale) / sqrt(sum + static_cast<double>(kL2NormEpsilon)));
}

__device__ __forceinline__ Vec4 Scale4(const Vec4& x, float factor) {
  return {x.x * factor, x.y * factor, x.z * factor, x.w * factor};
}

}  // namespace gdn::gpu
