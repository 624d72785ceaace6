// Decay factors exp(G_i - G_j) from running sums G of clamped log decays (log_decay.h).
//
// G is kept in double and the difference is rounded to float32 only once it is taken: a float32 sum of one -1e4 among
// tokens near -0.005 would be off by 1e-3, and exp(G_i) * exp(-G_j) would be 0 * inf.
// A Highway per-target header: include it below foreach_target.h. Thread safety: free functions.
//
//   float factors[16];
//   ExpDifferences(d, sums[i], sums, /*count=*/i + 1, factors);  // factors[j] = exp(sums[i] - sums[j])

// Included once per target, so the guard toggles.
#if defined(GDN_KERNELS_COMMON_DECAY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_COMMON_DECAY_INL_H_
#undef GDN_KERNELS_COMMON_DECAY_INL_H_
#else
#define GDN_KERNELS_COMMON_DECAY_INL_H_
#endif

#include <cstdint>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Returns exp(x), but NaN for a NaN, which Highway's Exp turns into 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpOrNaN(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

// Returns the floats that a buffer for `count` factors must have: `count` rounded up to a multiple of 16.
constexpr int64_t PaddedFactors(int64_t count) { return (count + 15) / 16 * 16; }

// factors[j] = exp(exponent(j)) for 0 <= j < count; exponents are rounded to float32 first. `factors` has
// PaddedFactors(count) floats; those past count become 1.
template <class D, class Exponent>
HWY_INLINE void ExpOfEach(D d, int64_t count, const Exponent& exponent, float* factors) {
  const int64_t padded = PaddedFactors(count);
  for (int64_t j = 0; j < count; ++j) factors[j] = static_cast<float>(exponent(j));
  for (int64_t j = count; j < padded; ++j) factors[j] = 0.0f;
  for (int64_t j = 0; j < padded; j += static_cast<int64_t>(hn::Lanes(d))) {
    hn::StoreU(ExpOrNaN(d, hn::LoadU(d, factors + j)), d, factors + j);
  }
}

// factors[j] = exp(newest - sums[j]) for 0 <= j < count, subtracted in double. `factors` has PaddedFactors(count)
// floats; those past count become 1.
template <class D>
HWY_INLINE void ExpDifferences(D d, double newest, const double* sums, int64_t count, float* factors) {
  ExpOfEach(
      d, count, [&](int64_t j) HWY_ATTR { return newest - sums[j]; }, factors);
}

// factors[j] = exp(sums[j]) for 0 <= j < count. `factors` has PaddedFactors(count) floats; those past count become 1.
template <class D>
HWY_INLINE void ExpSums(D d, const double* sums, int64_t count, float* factors) {
  ExpOfEach(
      d, count, [&](int64_t j) HWY_ATTR { return sums[j]; }, factors);
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // GDN_KERNELS_COMMON_DECAY_INL_H_
