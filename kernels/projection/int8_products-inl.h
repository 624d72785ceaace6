// Products of int8 inputs with weights' codes (int8_weights-inl.h), by instruction set. Included once per Highway
// target, so the guard toggles.
//
// A lane of 32 bits has four codes of one output. It meets the inputs of the same four features. ProductsFor<L> has the
// best instructions for codes up to L:
//   FourProducts     AVX-512 VNNI
//   PairProducts     codes of at most 7 bits on other x86. An int16 holds kInt16Sums sums of two products
//   ShortProducts    8-bit codes on other x86. Inputs take two lanes, as int16: features 0 and 2, then features 1 and 3
//   SingleProducts   elsewhere
// Functions that use it stand between GDN_BEFORE_INT8_PRODUCTS and GDN_AFTER_INT8_PRODUCTS.
//
//   using P = ProductsFor<15>;
//   P::Sums sums = P::Start(zero);
//   P::template Add<0>(sums, codes, inputs);  // step 0 of 1; inputs: kInputLanes vectors
//   IntVec total = P::template Total<1>(sums);
#if defined(GDN_KERNELS_PROJECTION_INT8_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_PROJECTION_INT8_PRODUCTS_INL_H_
#undef GDN_KERNELS_PROJECTION_INT8_PRODUCTS_INL_H_
#else
#define GDN_KERNELS_PROJECTION_INT8_PRODUCTS_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/projection/float_lanes-inl.h"

// Highway 1.0.3 asks a processor of this target for AVX-512 VNNI, but does not tell the compiler.
#undef GDN_BEFORE_INT8_PRODUCTS
#undef GDN_AFTER_INT8_PRODUCTS
#if HWY_TARGET == HWY_AVX3_DL
#define GDN_BEFORE_INT8_PRODUCTS HWY_PRAGMA(GCC push_options) HWY_PRAGMA(GCC target("avx512vnni")) static_assert(true)
#define GDN_AFTER_INT8_PRODUCTS HWY_PRAGMA(GCC pop_options) static_assert(true)
#else
#define GDN_BEFORE_INT8_PRODUCTS static_assert(true)
#define GDN_AFTER_INT8_PRODUCTS static_assert(true)
#endif

HWY_BEFORE_NAMESPACE();
GDN_BEFORE_INT8_PRODUCTS;
namespace gdn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX3_DL

struct FourProducts {
  static constexpr int kInputLanes = 1;
  static constexpr bool kStartsAnywhere = true;  // Start takes any number, not zero only
  struct Sums {
    IntVec sum;
  };
  static HWY_INLINE Sums Start(IntVec start) { return {start}; }
  template <int kStep>
  static HWY_INLINE void Add(Sums& sums, IntVec codes, const IntVec (&inputs)[1]) {
    sums.sum = IntVec{_mm512_dpbusd_epi32(sums.sum.raw, codes.raw, inputs[0].raw)};
  }
  template <int kSteps>
  static HWY_INLINE IntVec Total(const Sums& sums) {
    return sums.sum;
  }
};

template <int kLargest>
using ProductsFor = FourProducts;

#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3

HWY_INLINE IntVec PairSums(IntVec codes, IntVec inputs) {
#if HWY_TARGET == HWY_AVX3
  return IntVec{_mm512_maddubs_epi16(codes.raw, inputs.raw)};
#elif HWY_TARGET == HWY_AVX2
  return IntVec{_mm256_maddubs_epi16(codes.raw, inputs.raw)};
#else
  return IntVec{_mm_maddubs_epi16(codes.raw, inputs.raw)};
#endif
}
HWY_INLINE IntVec MultiplyShorts(IntVec a, IntVec b) {
#if HWY_TARGET == HWY_AVX3
  return IntVec{_mm512_madd_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
  return IntVec{_mm256_madd_epi16(a.raw, b.raw)};
#else
  return IntVec{_mm_madd_epi16(a.raw, b.raw)};
#endif
}
HWY_INLINE IntVec AddShorts(IntVec a, IntVec b) {
  const hn::Repartition<int16_t, IntTag> d16;
  return hn::BitCast(IntTag(), hn::Add(hn::BitCast(d16, a), hn::BitCast(d16, b)));
}
HWY_INLINE IntVec WidenPairs(IntVec sums) { return MultiplyShorts(sums, hn::Set(IntTag(), 0x00010001)); }

// Returns `sum` and keeps the compiler from adding up in another order: it would compute all products first and have no
// registers for them.
HWY_INLINE IntVec InOrder(IntVec sum) {
  asm("" : "+v"(sum.raw));
  return sum;
}

// Sums of two products, each with a code of at most `largest`, that an int16 holds: 0, 1, 2, 4 or 8.
constexpr int Int16Sums(int largest) {
  const int most = 32767 / (2 * 127 * largest);
  return most >= 8 ? 8 : most >= 4 ? 4 : most >= 2 ? 2 : most;
}

template <int kInt16Sums>
struct PairProducts {
  static constexpr int kInputLanes = 1;
  static constexpr bool kStartsAnywhere = false;
  struct Sums {
    IntVec shorts;
    IntVec sum;
  };
  static HWY_INLINE Sums Start(IntVec zero) { return {zero, zero}; }
  template <int kStep>
  static HWY_INLINE void Add(Sums& sums, IntVec codes, const IntVec (&inputs)[1]) {
    const IntVec pairs = PairSums(codes, inputs[0]);
    if constexpr (kStep == 0) {
      sums.shorts = pairs;
    } else if constexpr (kStep % kInt16Sums == 0) {
      sums.sum = InOrder(hn::Add(sums.sum, WidenPairs(sums.shorts)));
      sums.shorts = pairs;
    } else {
      sums.shorts = InOrder(AddShorts(sums.shorts, pairs));
    }
  }
  template <int kSteps>
  static HWY_INLINE IntVec Total(const Sums& sums) {
    const IntVec rest = WidenPairs(sums.shorts);
    return kSteps > kInt16Sums ? hn::Add(sums.sum, rest) : rest;
  }
};

struct ShortProducts {
  static constexpr int kInputLanes = 2;
  static constexpr bool kStartsAnywhere = true;
  struct Sums {
    IntVec sum;
  };
  static HWY_INLINE Sums Start(IntVec start) { return {start}; }
  template <int kStep>
  static HWY_INLINE void Add(Sums& sums, IntVec codes, const IntVec (&inputs)[2]) {
    const hn::Repartition<uint16_t, IntTag> d16;
    const auto both = hn::BitCast(d16, codes);
    const IntVec even = hn::BitCast(IntTag(), hn::And(both, hn::Set(d16, uint16_t{255})));
    const IntVec odd = hn::BitCast(IntTag(), hn::ShiftRight<8>(both));
    sums.sum = InOrder(hn::Add(sums.sum, MultiplyShorts(even, inputs[0])));
    sums.sum = InOrder(hn::Add(sums.sum, MultiplyShorts(odd, inputs[1])));
  }
  template <int kSteps>
  static HWY_INLINE IntVec Total(const Sums& sums) {
    return sums.sum;
  }
};

template <int kLargest>
using ProductsFor = std::conditional_t<(Int16Sums(kLargest) > 0), PairProducts<Int16Sums(kLargest)>, ShortProducts>;

#else

struct SingleProducts {
  static constexpr int kInputLanes = 1;
  static constexpr bool kStartsAnywhere = true;
  struct Sums {
    IntVec sum;
  };
  static HWY_INLINE Sums Start(IntVec start) { return {start}; }
  template <int kStep>
  static HWY_INLINE void Add(Sums& sums, IntVec codes, const IntVec (&inputs)[1]) {
    AddByte<0>(sums, codes, inputs[0]);
    AddByte<8>(sums, codes, inputs[0]);
    AddByte<16>(sums, codes, inputs[0]);
    AddByte<24>(sums, codes, inputs[0]);
  }
  template <int kSteps>
  static HWY_INLINE IntVec Total(const Sums& sums) {
    return sums.sum;
  }

 private:
  template <int kShift>
  static HWY_INLINE void AddByte(Sums& sums, IntVec codes, IntVec inputs) {
    const IntVec code = hn::And(hn::ShiftRight<kShift>(codes), hn::Set(IntTag(), 255));
    const IntVec input = hn::ShiftRight<24>(hn::ShiftLeft<24 - kShift>(inputs));  // signed
    sums.sum = hn::Add(sums.sum, hn::Mul(code, input));
  }
};

template <int kLargest>
using ProductsFor = SingleProducts;

#endif

}  // namespace gdn::HWY_NAMESPACE
GDN_AFTER_INT8_PRODUCTS;
HWY_AFTER_NAMESPACE();

#endif  // GDN_KERNELS_PROJECTION_INT8_PRODUCTS_INL_H_
