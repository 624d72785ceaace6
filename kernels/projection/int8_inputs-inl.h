// Rounding of inputs to int8 (base/product_math.h), with the sums that products with offset codes need. Included once
// per Highway target, so the guard toggles.
//
//   RoundRow(params, row, [&](int64_t block, const RoundedBlock& rounded) { ... });  // the row's blocks in order
#if defined(GDN_KERNELS_PROJECTION_INT8_INPUTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_PROJECTION_INT8_INPUTS_INL_H_
#undef GDN_KERNELS_PROJECTION_INT8_INPUTS_INL_H_
#else
#define GDN_KERNELS_PROJECTION_INT8_INPUTS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "base/product_math.h"
#include "hwy/highway.h"
#include "kernels/projection/projection_paths.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct RoundedBlock {
  alignas(32) int8_t q[kInt8Block];
  float scale;
  int32_t half_sums[2];  // of the first 16 of q and of the others
};

HWY_INLINE void RoundBlock(const float* x, RoundedBlock& rounded) {
  constexpr int kHalf = kInt8Block / 2;
  const hn::CappedTag<float, kHalf> d;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Rebind<int8_t, decltype(d)> d8;
  constexpr int kWidth = static_cast<int>(hn::MaxLanes(d));
  auto largest = hn::Zero(d32);
  HWY_UNROLL(32) for (int i = 0; i < kInt8Block; i += kWidth) {
    largest = hn::Max(largest, hn::BitCast(d32, hn::Abs(hn::LoadU(d, x + i))));
  }
  const Int8Scale scale = Int8ScaleOf(static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(d32, largest))));
  rounded.scale = scale.scale;
  const auto inverse = hn::Set(d, scale.inverse);
  // Not a product with NaN or an infinity, which no integer stands for.
  const auto counts = hn::Ne(inverse, hn::Zero(d));
  for (int half = 0; half < 2; ++half) {
    auto sum = hn::Zero(d32);
    HWY_UNROLL(16) for (int i = half * kHalf; i < (half + 1) * kHalf; i += kWidth) {
      const auto product = hn::IfThenElseZero(counts, hn::Mul(hn::LoadU(d, x + i), inverse));
      const auto q = hn::NearestInt(product);
      sum = hn::Add(sum, q);
      hn::StoreU(hn::DemoteTo(d8, q), d8, rounded.q + i);
    }
    rounded.half_sums[half] = hn::GetLane(hn::SumOfLanes(d32, sum));
  }
}

template <class Function>
HWY_INLINE void RoundRow(const ProjectionParams& params, int64_t row, const Function& function) {
  constexpr int64_t kPiece = 16 * kInt8Block;
  const InputTensor x = params.x.From(row * params.x_stride);
  alignas(64) float widened[kPiece];
  RoundedBlock rounded;
  for (int64_t first = 0; first < params.weight.cols; first += kPiece) {
    const int64_t count = std::min(kPiece, params.weight.cols - first);
    const float* piece = widened;
    if (x.dtype == DType::kF32) {
      piece = x.floats() + first;
    } else {
      WidenToFloat(x.dtype, x.From(first).data, count, widened);
    }
    for (int64_t i = 0; i < count; i += kInt8Block) {
      RoundBlock(piece + i, rounded);
      function((first + i) / kInt8Block, rounded);
    }
  }
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // GDN_KERNELS_PROJECTION_INT8_INPUTS_INL_H_
