// Loads bytes of a quantised block into the lanes of a vector, in memory order. No load reads past the bytes that it is
// named for, because a matrix may end where its file's mapping ends. Included once per Highway target, so the guard
// toggles.
#if defined(GDN_KERNELS_PROJECTION_QUANTIZED_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_PROJECTION_QUANTIZED_LANES_INL_H_
#undef GDN_KERNELS_PROJECTION_QUANTIZED_LANES_INL_H_
#else
#define GDN_KERNELS_PROJECTION_QUANTIZED_LANES_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gdn {
namespace HWY_NAMESPACE {

using FloatTag = hwy::HWY_NAMESPACE::ScalableTag<float>;
using FloatVec = hwy::HWY_NAMESPACE::Vec<FloatTag>;
using IntTag = hwy::HWY_NAMESPACE::RebindToSigned<FloatTag>;
using IntVec = hwy::HWY_NAMESPACE::Vec<IntTag>;
using ByteTag = hwy::HWY_NAMESPACE::Rebind<uint8_t, FloatTag>;
using ByteVec = hwy::HWY_NAMESPACE::Vec<ByteTag>;

inline constexpr int kFloatLanes = static_cast<int>(hwy::HWY_NAMESPACE::MaxLanes(FloatTag()));

HWY_INLINE float HalfAt(const uint8_t* at) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<float, 1> d;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return hn::GetLane(hn::PromoteTo(d, hn::BitCast(half, hn::Set(d16, bits))));
}

HWY_INLINE ByteVec LoadNarrow(const uint8_t* at) { return hwy::HWY_NAMESPACE::LoadU(ByteTag(), at); }
HWY_INLINE IntVec LoadBytes(const uint8_t* at) { return hwy::HWY_NAMESPACE::PromoteTo(IntTag(), LoadNarrow(at)); }
template <int kShift>
HWY_INLINE IntVec LoadShifted(const uint8_t* at) {
  return hwy::HWY_NAMESPACE::ShiftRight<kShift>(LoadBytes(at));
}

HWY_INLINE FloatVec BroadcastHalf(const uint8_t* at) { return hwy::HWY_NAMESPACE::Set(FloatTag(), HalfAt(at)); }

class ScaledSignedBytes {
 public:
  explicit HWY_INLINE ScaledSignedBytes(FloatVec scale) : scale_(scale) {}

  HWY_INLINE FloatVec Load(const uint8_t* at) const {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::Rebind<int8_t, FloatTag> d8;
    const auto bytes = hn::LoadU(d8, reinterpret_cast<const int8_t*>(at));
    return hn::Mul(scale_, hn::ConvertTo(FloatTag(), hn::PromoteTo(IntTag(), bytes)));
  }

 private:
  FloatVec scale_;
};

}  // namespace HWY_NAMESPACE
}  // namespace gdn
HWY_AFTER_NAMESPACE();

#endif  // GDN_KERNELS_PROJECTION_QUANTIZED_LANES_INL_H_
