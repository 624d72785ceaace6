// The scan's sums over K that predict a token's values, in blocks.
//
// A Highway per-target header: include it below foreach_target.h, in files compiled without contraction. Thread safety:
// free functions.
//
//   ForPredictionBlocks<true>(key_dim, p, [&](int64_t i, hn::Vec<FloatTag>(&part)[kTileVectors]) HWY_ATTR { ... });

// Included once per target, so the guard toggles.
#if defined(GDN_KERNELS_DELTA_RULE_SCAN_PREDICTION_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_DELTA_RULE_SCAN_PREDICTION_BLOCKS_INL_H_
#undef GDN_KERNELS_DELTA_RULE_SCAN_PREDICTION_BLOCKS_INL_H_
#else
#define GDN_KERNELS_DELTA_RULE_SCAN_PREDICTION_BLOCKS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/small_gemm/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn {
namespace HWY_NAMESPACE {

// Calls row(i, part) for each i < key_dim, which adds its products to `part`. If kPredict, p += part after every 16
// rows. If beta is near 2, the state keeps the error of every prediction, and one chain of K sums would err most.
template <bool kPredict, class Row>
HWY_INLINE void ForPredictionBlocks(int64_t key_dim, hn::Vec<FloatTag> (&p)[kTileVectors], const Row& row) {
  constexpr int64_t kBlock = 16;
  const FloatTag d;
  for (int64_t first = 0; first < key_dim; first += kBlock) {
    const int64_t end = std::min(key_dim, first + kBlock);
    hn::Vec<FloatTag> part[kTileVectors];
    HWY_UNROLL(16)
    for (int n = 0; n < kTileVectors; ++n) part[n] = hn::Zero(d);  // NOLINT(modernize-loop-convert): unrolled
    for (int64_t i = first; i < end; ++i) row(i, part);
    HWY_UNROLL(16)
    for (int n = 0; kPredict && n < kTileVectors; ++n) p[n] = hn::Add(p[n], part[n]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace gdn
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
