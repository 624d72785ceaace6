// The gates on the CPU, a vector at a time: of heads that have one decay each, or of a head's channels, which share its
// A_log. Values that fill no vector are computed one by one. exp and log1p are Highway's: the C library's would change
// bits with every update of it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gating/gating_cpu.cc"
#include "hwy/foreach_target.h"
// foreach_target.h must come first.
#include <cstdint>
#include <limits>
#include <vector>

#include "hwy/highway.h"
#include "kernels/common/decay-inl.h"
#include "kernels/common/parallel.h"
#include "kernels/common/vector_math-inl.h"
#include "kernels/gating/gating.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {
namespace {

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

// g for x = a + dt_bias.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V LogDecay(D d, V x, const GatingParams& params, V rate) {
  const V finite = ClampFinite(d, x);
  if (params.gate == DecayGate::kSoftplus) return ClampFinite(d, hn::Mul(rate, Softplus(d, finite)));
  return hn::Mul(hn::Set(d, params.lower_bound), Sigmoid(d, hn::Mul(hn::Neg(rate), finite)));
}

// -exp(A_log) of each head. Clamped, so that an infinite rate never meets a softplus of zero.
void DecayRates(const GatingParams& params, float* rates) {
  ForVectors(params.value_heads, [&](auto d, int64_t head) HWY_ATTR {
    const auto a_log = hn::LoadU(d, params.a_log + head);
    const auto most = hn::Set(d, 100.0f);  // e^100 is infinite in float32; keeps Exp inside its domain
    const auto rate = ExpOrNaN(d, hn::IfThenElse(hn::Gt(a_log, most), most, a_log));
    hn::StoreU(ClampFinite(d, hn::Neg(rate)), d, rates + head);
  });
}

HWY_INLINE void GateRow(const GatingParams& params, const float* rates, int64_t row) {
  const int64_t heads = params.value_heads;
  const int64_t width = params.decay_dim;
  const float* HWY_RESTRICT a = params.a + row * heads * width;
  const float* HWY_RESTRICT bias = params.dt_bias;
  float* HWY_RESTRICT g = params.g + row * heads * width;
  if (width == 1) {
    ForVectors(heads, [&](auto d, int64_t i) HWY_ATTR {
      const auto x = hn::Add(hn::LoadU(d, a + i), hn::LoadU(d, bias + i));
      hn::StoreU(LogDecay(d, x, params, hn::LoadU(d, rates + i)), d, g + i);
    });
  } else {
    for (int64_t head = 0; head < heads; ++head) {
      ForVectors(width, [&](auto d, int64_t c) HWY_ATTR {
        const int64_t i = head * width + c;
        const auto x = hn::Add(hn::LoadU(d, a + i), hn::LoadU(d, bias + i));
        hn::StoreU(LogDecay(d, x, params, hn::Set(d, rates[head])), d, g + i);
      });
    }
  }
  const float* HWY_RESTRICT b = params.b + row * heads;
  float* HWY_RESTRICT beta = params.beta + row * heads;
  ForVectors(heads, [&](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::Set(d, params.beta_scale), Sigmoid(d, hn::LoadU(d, b + i))), d, beta + i);
  });
}

void GateRows(const GatingParams& params, const float* rates, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) GateRow(params, rates, row);
}

}  // namespace
}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {
namespace {

constexpr int64_t kRowsPerTask = 16;
constexpr int64_t kWorkPerValue = 6;  // two transcendental functions in vectors

}  // namespace

HWY_EXPORT(DecayRates);
HWY_EXPORT(GateRows);

absl::Status GatingCpu(const GatingParams& params, ThreadPool& pool) {
  if (params.rows == 0) return absl::OkStatus();
  std::vector<float> rates(params.a_log, params.a_log + params.value_heads);  // d g / d softplus of each head
  if (params.convention == ALogConvention::kRaw) HWY_DYNAMIC_DISPATCH(DecayRates)(params, rates.data());
  const int64_t work = params.rows * params.value_heads * (params.decay_dim + int64_t{1}) * kWorkPerValue;
  ParallelForRows(pool, work, params.rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(GateRows)(params, rates.data(), begin, end);
  });
  return absl::OkStatus();
}

}  // namespace gdn
#endif  // HWY_ONCE
