// The conversions and checks of whole arrays of dtype.h, at the speed of memory: one vector after another, with the
// bits of the conversions of single elements, which serve the tails.
#include <cstring>

#include "base/dtype.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/dtype_arrays.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gdn {
namespace HWY_NAMESPACE {
template <DType>
struct DTypeTag {};
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToUnsigned<Floats>;
using Halves = hn::Rebind<uint16_t, Floats>;  // as many of 16 bits as a vector has floats

HWY_INLINE hn::Vec<Halves> LoadHalves(const char* src) {
  return hn::LoadU(Halves(), reinterpret_cast<const uint16_t*>(src));
}

HWY_INLINE hn::Vec<Floats> Widen(DTypeTag<DType::kBF16>, hn::Vec<Halves> bits) {
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), bits)));
}

// As F16ToFloat, in integers but for subnormals: those are integers times 2^-24, which float32 holds exactly.
HWY_INLINE hn::Vec<Floats> Widen(DTypeTag<DType::kF16>, hn::Vec<Halves> half) {
  const Words words;
  const hn::RebindToSigned<Words> ints;
  const auto bits = hn::PromoteTo(words, half);
  const auto magnitude = hn::And(bits, hn::Set(words, 0x7fff));
  const auto number = hn::BitCast(ints, magnitude);
  const auto at_least = [&](int32_t least) { return hn::RebindMask(words, hn::Gt(number, hn::Set(ints, least - 1))); };
  const auto bias = hn::Set(words, uint32_t{127 - 15} << 23);
  auto wide = hn::Add(hn::ShiftLeft<13>(magnitude), bias);
  wide = hn::IfThenElse(at_least(0x7c00), hn::Add(wide, bias), wide);
  const auto subnormal = hn::Mul(hn::ConvertTo(Floats(), number), hn::Set(Floats(), 0x1p-24f));
  wide = hn::IfThenElse(at_least(0x0400), wide, hn::BitCast(words, subnormal));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(words, 0x8000)));
  return hn::BitCast(Floats(), hn::Or(sign, wide));
}

HWY_INLINE hn::Vec<Halves> Narrow(DTypeTag<DType::kBF16>, hn::Vec<Floats> value) {
  const Words words;
  const hn::RebindToSigned<Words> ints;
  const auto bits = hn::BitCast(words, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fff))));
  const auto quieted = hn::Or(hn::ShiftRight<16>(bits), hn::Set(words, 0x40));
  const auto magnitude = hn::BitCast(ints, hn::And(bits, hn::Set(words, 0x7fffffff)));
  const auto is_nan = hn::Gt(magnitude, hn::Set(ints, 0x7f800000));
  return hn::TruncateTo(Halves(), hn::IfThenElse(hn::RebindMask(words, is_nan), quieted, rounded));
}

template <DType kFrom>
void WidenAll(const char* HWY_RESTRICT src, size_t count, float* HWY_RESTRICT dst) {
  const size_t lanes = hn::Lanes(Floats());
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(Widen(DTypeTag<kFrom>(), LoadHalves(src + 2 * i)), Floats(), dst + i);
  }
  for (; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, src + 2 * i, sizeof(bits));
    dst[i] = kFrom == DType::kBF16 ? BF16ToFloat(bits) : F16ToFloat(bits);
  }
}

void NarrowToBF16(const float* HWY_RESTRICT src, size_t count, char* HWY_RESTRICT dst) {
  const size_t lanes = hn::Lanes(Floats());
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto bits = Narrow(DTypeTag<DType::kBF16>(), hn::LoadU(Floats(), src + i));
    hn::StoreU(bits, Halves(), reinterpret_cast<uint16_t*>(dst + 2 * i));
  }
  for (; i < count; ++i) {
    const uint16_t bits = FloatToBF16(src[i]);
    std::memcpy(dst + 2 * i, &bits, sizeof(bits));
  }
}

// Whether any of `count` words has every bit of `mask` set, that is: an exponent of all ones.
template <typename Word>
bool AnyHasAllBits(const char* data, size_t count, Word mask_bits) {
  const hn::ScalableTag<Word> words;
  const size_t lanes = hn::Lanes(words);
  const auto mask = hn::Set(words, mask_bits);
  auto any = hn::Zero(words);
  size_t i = 0;
  const auto at = [&](size_t index) {
    const auto word = hn::LoadU(words, reinterpret_cast<const Word*>(data + index * sizeof(Word)));
    return hn::VecFromMask(words, hn::Eq(hn::And(word, mask), mask));
  };
  for (; i + 2 * lanes <= count; i += 2 * lanes) any = hn::Or(any, hn::Or(at(i), at(i + lanes)));
  if (!hn::AllTrue(words, hn::Eq(any, hn::Zero(words)))) return true;
  for (; i < count; ++i) {
    Word word;
    std::memcpy(&word, data + i * sizeof(Word), sizeof(Word));
    if ((word & mask_bits) == mask_bits) return true;
  }
  return false;
}

void ToFloat(DType from, const char* src, size_t count, float* dst) {
  return from == DType::kBF16 ? WidenAll<DType::kBF16>(src, count, dst) : WidenAll<DType::kF16>(src, count, dst);
}

bool NonFinite(DType dtype, const char* data, size_t count) {
  switch (dtype) {
    case DType::kF32:
      return AnyHasAllBits<uint32_t>(data, count, 0x7f800000u);
    case DType::kF16:
      return AnyHasAllBits<uint16_t>(data, count, uint16_t{0x7c00});
    case DType::kBF16:
      return AnyHasAllBits<uint16_t>(data, count, uint16_t{0x7f80});
  }
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace gdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {

HWY_EXPORT(ToFloat);
HWY_EXPORT(NarrowToBF16);
HWY_EXPORT(NonFinite);

void ConvertToFloat(DType from, const void* src, size_t count, float* dst) {
  if (count == 0) return;
  if (from == DType::kF32) {
    std::memcpy(dst, src, count * sizeof(float));
  } else {
    HWY_DYNAMIC_DISPATCH(ToFloat)(from, static_cast<const char*>(src), count, dst);
  }
}

void ConvertFromFloat(const float* src, size_t count, DType to, void* dst) {
  if (count == 0) return;
  char* const out = static_cast<char*>(dst);
  switch (to) {
    case DType::kF32:
      std::memcpy(out, src, count * sizeof(float));
      return;
    case DType::kBF16:
      return HWY_DYNAMIC_DISPATCH(NarrowToBF16)(src, count, out);
    case DType::kF16:
      for (size_t i = 0; i < count; ++i) {
        const uint16_t bits = FloatToF16(src[i]);
        std::memcpy(out + 2 * i, &bits, sizeof(bits));
      }
      return;
  }
}

bool AnyNonFinite(DType dtype, const void* data, size_t count) {
  return HWY_DYNAMIC_DISPATCH(NonFinite)(dtype, static_cast<const char*>(data), count);
}

}  // namespace gdn
#endif  // HWY_ONCE
