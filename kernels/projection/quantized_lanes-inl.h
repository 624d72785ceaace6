// How bytes of a quantised block come into the lanes of a vector. For each Highway target it is included anew, so the
// guard toggles.
//
// With AVX-512 and VNNI a vector of sixteen weights has them *transposed*, as a matrix of four by four: the same 16
// bytes are loaded to each quarter of a register (by a load port alone), and a shift or a dot product with a one takes
// byte q of each 32-bit word in quarter q. Widening bytes in their own order would keep the one port busy that also
// looks up Q4_K's weights. Elsewhere the order is that of memory. Sums by lane don't care, as long as x is in the same
// order; it is put there once for all outputs (ToLaneOrder), and a vector of sums is put back (FromLaneOrder).
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

#if HWY_TARGET == HWY_AVX3_DL

HWY_INLINE FloatVec ToLaneOrder(FloatVec v) {
  return FloatVec{
      _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), v.raw)};
}
HWY_INLINE FloatVec FromLaneOrder(FloatVec v) { return ToLaneOrder(v); }  // a transposition undoes itself

HWY_INLINE __m512i LoadToQuarters(const uint8_t* at) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
// In quarter q a one in byte q of each word.
HWY_INLINE __m512i OneByteOfEach() {
  return _mm512_setr_epi32(1, 1, 1, 1, 1 << 8, 1 << 8, 1 << 8, 1 << 8, 1 << 16, 1 << 16, 1 << 16, 1 << 16, 1 << 24,
                           1 << 24, 1 << 24, 1 << 24);
}

// The next sixteen bytes, from bit kShift of each on; what lies above bit 7 - kShift is undefined.
template <int kShift>
HWY_INLINE IntVec LoadShifted(const uint8_t* at) {
  constexpr int k = kShift;
  return IntVec{
      _mm512_srlv_epi32(LoadToQuarters(at), _mm512_setr_epi32(k, k, k, k, k + 8, k + 8, k + 8, k + 8, k + 16, k + 16,
                                                              k + 16, k + 16, k + 24, k + 24, k + 24, k + 24))};
}
HWY_INLINE IntVec LoadBytes(const uint8_t* at) {
  return IntVec{_mm512_dpbusd_epi32(_mm512_setzero_si512(), LoadToQuarters(at), OneByteOfEach())};
}
HWY_INLINE ByteVec LoadOrdered(const uint8_t* at) {
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return ByteVec{_mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)), order)};
}

// The float16 at `at` in every lane. Eight bytes are read.
HWY_INLINE FloatVec BroadcastHalf(const uint8_t* at) {
  return FloatVec{_mm512_broadcastss_ps(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))))};
}

// scale * q for signed bytes q, exactly: q is added to the bits of 1.5 * 2^23, whose last bit counts one, and the
// product of a float16 with so round a number has no more than 24 bits.
class ScaledSignedBytes {
 public:
  explicit HWY_INLINE ScaledSignedBytes(FloatVec scale)
      : scale_(scale), offset_(hwy::HWY_NAMESPACE::Mul(scale, hwy::HWY_NAMESPACE::Set(FloatTag(), 12582912.0f))) {}

  HWY_INLINE FloatVec Load(const uint8_t* at) const {
    const __m512i bits = _mm512_dpbusd_epi32(_mm512_set1_epi32(0x4b400000), OneByteOfEach(), LoadToQuarters(at));
    return FloatVec{_mm512_fmsub_ps(scale_.raw, _mm512_castsi512_ps(bits), offset_.raw)};
  }

 private:
  FloatVec scale_, offset_;
};

#else

HWY_INLINE FloatVec ToLaneOrder(FloatVec v) { return v; }
HWY_INLINE FloatVec FromLaneOrder(FloatVec v) { return v; }

HWY_INLINE ByteVec LoadOrdered(const uint8_t* at) { return hwy::HWY_NAMESPACE::LoadU(ByteTag(), at); }
HWY_INLINE IntVec LoadBytes(const uint8_t* at) { return hwy::HWY_NAMESPACE::PromoteTo(IntTag(), LoadOrdered(at)); }
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

#endif

}  // namespace HWY_NAMESPACE
}  // namespace gdn
HWY_AFTER_NAMESPACE();

#endif  // GDN_KERNELS_PROJECTION_QUANTIZED_LANES_INL_H_
