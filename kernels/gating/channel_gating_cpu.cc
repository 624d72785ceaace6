// Log decays that a vector computes: of a decay a key channel, whose values outnumber the heads' by K, and of the
// bounded gate. A head's channels share its A_log; those that fill no vector are computed one by one.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gating/channel_gating_cpu.cc"
#include "hwy/foreach_target.h"
// foreach_target.h must come first.
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/common/vector_math-inl.h"
#include "kernels/gating/channel_gating_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace gdn {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Written so that a NaN comes through.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ClampFinite(D d, V x) {
  const V most = hn::Set(d, std::numeric_limits<float>::max());
  return hn::IfThenElse(hn::Gt(x, most), most, hn::IfThenElse(hn::Lt(x, hn::Neg(most)), hn::Neg(most), x));
}

// The identity above 20, where float32 cannot tell them apart; a NaN comes through.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Softplus(D d, V x) {
  const V identity_from = hn::Set(d, 20.0f);
  const V curved = hn::Log1p(d, hn::Exp(d, hn::Min(x, identity_from)));
  return hn::IfThenElse(hn::Le(x, identity_from), curved, x);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V LogDecay(D d, V x, const GatingParams& params, float rate) {
  if (params.gate == DecayGate::kSoftplus) return ClampFinite(d, hn::Mul(hn::Set(d, rate), Softplus(d, x)));
  const V bounded = hn::Mul(hn::Set(d, params.lower_bound), Sigmoid(d, hn::Mul(hn::Set(d, -rate), x)));
  return hn::IfThenElse(hn::Eq(x, x), bounded, x);
}

void LogDecays(const GatingParams& params, const float* rates, int64_t row) {
  const int64_t width = params.decay_dim;
  for (int64_t head = 0; head < params.value_heads; ++head) {
    const int64_t at = (row * params.value_heads + head) * width;
    const float* HWY_RESTRICT a = params.a + at;
    const float* HWY_RESTRICT bias = params.dt_bias + head * width;
    float* HWY_RESTRICT g = params.g + at;
    ForVectors(width, [&](auto d, int64_t c) HWY_ATTR {
      const auto x = ClampFinite(d, hn::Add(hn::LoadU(d, a + c), hn::LoadU(d, bias + c)));
      hn::StoreU(LogDecay(d, x, params, rates[head]), d, g + c);
    });
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace gdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {

HWY_EXPORT(LogDecays);

void ChannelLogDecays(const GatingParams& params, const float* rates, int64_t row) {
  HWY_DYNAMIC_DISPATCH(LogDecays)(params, rates, row);
}

}  // namespace gdn
#endif  // HWY_ONCE
