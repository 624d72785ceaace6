// SIMD building blocks of several operators: loops over vectors, sigmoid, SiLU, sums of squares. Included once per
// Highway target, so the guard toggles.
//
//   const auto y = Silu(d, x);
//   const double sum = SumSquares(row, columns);
#if defined(GDN_KERNELS_COMMON_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_COMMON_VECTOR_MATH_INL_H_
#undef GDN_KERNELS_COMMON_VECTOR_MATH_INL_H_
#else
#define GDN_KERNELS_COMMON_VECTOR_MATH_INL_H_
#endif

#include <cstdint>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Calls body(tag, i) for whole vectors of [0, count) that start at i, then with a one-lane tag for each remaining
// element.
template <class Body>
HWY_INLINE void ForVectors(int64_t count, const Body& body) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) body(d, i);
  for (; i < count; ++i) body(hn::CappedTag<float, 1>(), i);
}

// Returns sigmoid(x) as 1 / (1 + e) or e / (1 + e) with e = exp(-|x|) in (0, 1], so no finite x overflows. NaN gives
// NaN; it needs a select, because Max and Exp do not propagate it.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V lowest = hn::Set(d, -105.0f);  // exp is 0 in float32 from here on; keeps Exp inside its domain
  const V e = hn::Exp(d, hn::Max(hn::Neg(hn::Abs(x)), lowest));
  const V numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Div(numerator, hn::Add(one, e)));
}

// Returns x * sigmoid(x); NaN for NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Silu(D d, V x) {
  return hn::Mul(x, Sigmoid(d, x));
}

// Returns the sum of `count` squares in double; its order depends only on `count` and the instruction set. No float32
// input overflows it.
HWY_INLINE double SumSquares(const float* HWY_RESTRICT x, int64_t count) {
  const hn::ScalableTag<double> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d64));
  auto sum0 = hn::Zero(d64);
  auto sum1 = hn::Zero(d64);
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto a = hn::PromoteTo(d64, hn::LoadU(d32, x + i));
    const auto b = hn::PromoteTo(d64, hn::LoadU(d32, x + i + lanes));
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d64, hn::Add(sum0, sum1)));
  for (; i < count; ++i) sum += double{x[i]} * double{x[i]};
  return sum;
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
