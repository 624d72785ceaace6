#include "tools/gdn_bench/kernels/machine_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/gdn_bench/kernels/machine_kernels.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
//
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;

float ReadStreamsImpl(const float* HWY_RESTRICT data, size_t floats) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  const size_t quarter = floats / 4;
  auto sum0 = hn::Zero(d);
  auto sum1 = sum0;
  auto sum2 = sum0;
  auto sum3 = sum0;
  for (size_t i = 0; i < quarter; i += lanes) {
    sum0 = hn::Add(sum0, hn::Load(d, data + i));
    sum1 = hn::Add(sum1, hn::Load(d, data + i + quarter));
    sum2 = hn::Add(sum2, hn::Load(d, data + i + 2 * quarter));
    sum3 = hn::Add(sum3, hn::Load(d, data + i + 3 * quarter));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

void CopyStreamsImpl(const float* HWY_RESTRICT src, float* HWY_RESTRICT dst, size_t floats) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < floats; i += 4 * lanes) {
    const auto x0 = hn::Load(d, src + i);
    const auto x1 = hn::Load(d, src + i + lanes);
    const auto x2 = hn::Load(d, src + i + 2 * lanes);
    const auto x3 = hn::Load(d, src + i + 3 * lanes);
    hn::Stream(x0, d, dst + i);
    hn::Stream(x1, d, dst + i + lanes);
    hn::Stream(x2, d, dst + i + 2 * lanes);
    hn::Stream(x3, d, dst + i + 3 * lanes);
  }
  hwy::FlushStream();
}

void UpdateInPlaceImpl(float* data, size_t floats, float factor) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  const auto f = hn::Set(d, factor);
  for (size_t i = 0; i < floats; i += 2 * lanes) {
    const auto x0 = hn::Mul(f, hn::Load(d, data + i));
    const auto x1 = hn::Mul(f, hn::Load(d, data + i + lanes));
    hn::Store(x0, d, data + i);
    hn::Store(x1, d, data + i + lanes);
  }
}

// Twelve hide a latency of four to six cycles on two pipes, and with the two constants still fit 16 registers.
constexpr int kAccumulators = 12;

float MultiplyAddsImpl(int64_t iterations, float multiplier, float addend) {
  const Floats d;
  const auto m = hn::Set(d, multiplier);
  const auto a = hn::Set(d, addend);
  // Different values, or a compiler would see twelve times the same one and keep a single accumulator.
  const auto start = [d, fixed_point = addend / (1.0f - multiplier)](int j) {
    return hn::Set(d, fixed_point + static_cast<float>(j));
  };
  auto x0 = start(0), x1 = start(1), x2 = start(2), x3 = start(3), x4 = start(4), x5 = start(5);
  auto x6 = start(6), x7 = start(7), x8 = start(8), x9 = start(9), x10 = start(10), x11 = start(11);
  for (int64_t i = 0; i < iterations; ++i) {
    x0 = hn::MulAdd(x0, m, a);
    x1 = hn::MulAdd(x1, m, a);
    x2 = hn::MulAdd(x2, m, a);
    x3 = hn::MulAdd(x3, m, a);
    x4 = hn::MulAdd(x4, m, a);
    x5 = hn::MulAdd(x5, m, a);
    x6 = hn::MulAdd(x6, m, a);
    x7 = hn::MulAdd(x7, m, a);
    x8 = hn::MulAdd(x8, m, a);
    x9 = hn::MulAdd(x9, m, a);
    x10 = hn::MulAdd(x10, m, a);
    x11 = hn::MulAdd(x11, m, a);
  }
  const auto low = hn::Add(hn::Add(hn::Add(x0, x1), hn::Add(x2, x3)), hn::Add(x4, x5));
  const auto high = hn::Add(hn::Add(hn::Add(x6, x7), hn::Add(x8, x9)), hn::Add(x10, x11));
  const float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(low, high)));
  return sum / static_cast<float>(kAccumulators * hn::Lanes(d));
}

int64_t FlopsPerIterationImpl() { return int64_t{2} * kAccumulators * static_cast<int64_t>(hn::Lanes(Floats())); }

}  // namespace HWY_NAMESPACE
}  // namespace gdn::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn::bench {

HWY_EXPORT(ReadStreamsImpl);
HWY_EXPORT(CopyStreamsImpl);
HWY_EXPORT(UpdateInPlaceImpl);
HWY_EXPORT(MultiplyAddsImpl);
HWY_EXPORT(FlopsPerIterationImpl);

float ReadStreams(const float* data, size_t floats) { return HWY_DYNAMIC_DISPATCH(ReadStreamsImpl)(data, floats); }

void CopyStreams(const float* src, float* dst, size_t floats) {
  HWY_DYNAMIC_DISPATCH(CopyStreamsImpl)(src, dst, floats);
}

void UpdateInPlace(float* data, size_t floats, float factor) {
  HWY_DYNAMIC_DISPATCH(UpdateInPlaceImpl)(data, floats, factor);
}

float MultiplyAdds(int64_t iterations, float multiplier, float addend) {
  return HWY_DYNAMIC_DISPATCH(MultiplyAddsImpl)(iterations, multiplier, addend);
}

int64_t FlopsPerIteration() { return HWY_DYNAMIC_DISPATCH(FlopsPerIterationImpl)(); }

}  // namespace gdn::bench
#endif  // HWY_ONCE
