// Vectors of float32 and of 32-bit integers, as the CPU's projections of quantised weights use them. Included once per
// Highway target, so the guard toggles.
//
//   FloatVec sum = hn::Zero(FloatTag());  // kFloatLanes elements
#if defined(GDN_KERNELS_PROJECTION_FLOAT_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_PROJECTION_FLOAT_LANES_INL_H_
#undef GDN_KERNELS_PROJECTION_FLOAT_LANES_INL_H_
#else
#define GDN_KERNELS_PROJECTION_FLOAT_LANES_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
using IntTag = hn::RebindToSigned<FloatTag>;
using IntVec = hn::Vec<IntTag>;
inline constexpr int kFloatLanes = static_cast<int>(hn::MaxLanes(FloatTag()));

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // GDN_KERNELS_PROJECTION_FLOAT_LANES_INL_H_
