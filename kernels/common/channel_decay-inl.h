// Decays per key channel (KDA): exp of running sums of log decays, a vector of channels at a time.
//
// Sums are double, for the reasons in decay-inl.h. They only decrease, so no exponential exceeds 1. Terms are not
// clamped, because no code takes differences of these sums.
// A Highway per-target header: include it below foreach_target.h. Thread safety: free functions.
//
//   std::fill_n(sums, key_dim, 0.0);
//   ForVectors(key_dim, [&](auto d, int64_t c) HWY_ATTR { hn::StoreU(AddDecay(d, g + c, sums + c), d, decay + c); });

// Included once per target, so the guard toggles.
#if defined(GDN_KERNELS_COMMON_CHANNEL_DECAY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_COMMON_CHANNEL_DECAY_INL_H_
#undef GDN_KERNELS_COMMON_CHANNEL_DECAY_INL_H_
#else
#define GDN_KERNELS_COMMON_CHANNEL_DECAY_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/common/decay-inl.h"
#include "kernels/common/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
// Returns exp(sums) for a vector of channels: sums are rounded to float32 first; NaN gives NaN.
template <class D>
HWY_INLINE hn::Vec<D> DecayOf(D d, const double* HWY_RESTRICT sums) {
  const hn::Half<D> half;
  const hn::Rebind<double, decltype(half)> wide;
  const auto low = hn::DemoteTo(half, hn::LoadU(wide, sums));
  const auto high = hn::DemoteTo(half, hn::LoadU(wide, sums + static_cast<int64_t>(hn::Lanes(half))));
  return ExpOrNaN(d, hn::Combine(d, high, low));
}

// sums += g for a vector of channels, in double.
template <class D>
HWY_INLINE void AddToSums(D d, const float* HWY_RESTRICT g, double* HWY_RESTRICT sums) {
  const hn::Half<D> half;
  const hn::Rebind<double, decltype(half)> wide;
  for (const int64_t c : {int64_t{0}, static_cast<int64_t>(hn::Lanes(half))}) {
    hn::StoreU(hn::Add(hn::LoadU(wide, sums + c), hn::PromoteTo(wide, hn::LoadU(half, g + c))), wide, sums + c);
  }
}
#endif
HWY_INLINE hn::Vec<hn::CappedTag<float, 1>> DecayOf(hn::CappedTag<float, 1> d, const double* sums) {
  return ExpOrNaN(d, hn::Set(d, static_cast<float>(*sums)));
}
HWY_INLINE void AddToSums(hn::CappedTag<float, 1>, const float* g, double* sums) { *sums += double{*g}; }

// Adds g to the sums of a vector of channels, in double, and returns exp of the new sums.
template <class D>
HWY_INLINE hn::Vec<D> AddDecay(D d, const float* HWY_RESTRICT g, double* HWY_RESTRICT sums) {
  AddToSums(d, g, sums);
  return DecayOf(d, sums);
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
