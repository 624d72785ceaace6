// The scan of a slice for decays by key channel: the pass over the state of delta_rule_scan_cpu.cc, with a decay e_t[c]
// = e^{g_t[c]} for each row of S:
//   S = diag(e_t) S + k_t u_t^T;  o_t = S^T q_t;  p = S^T (e_{t+1} k_{t+1})        u_{t+1} = beta (v_{t+1} - p)
//
// A Highway per-target header: include it below foreach_target.h, in files compiled without contraction. Thread safety:
// free functions.
//
//   ChannelScanSlice(task);  // task.factors has ScanFactorFloats(dims) floats

// Included once per target, so the guard toggles.
#if defined(GDN_KERNELS_DELTA_RULE_SCAN_CHANNEL_SCAN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_DELTA_RULE_SCAN_CHANNEL_SCAN_INL_H_
#undef GDN_KERNELS_DELTA_RULE_SCAN_CHANNEL_SCAN_INL_H_
#else
#define GDN_KERNELS_DELTA_RULE_SCAN_CHANNEL_SCAN_INL_H_
#endif

#include <cstdint>
#include <utility>

#include "hwy/highway.h"
#include "kernels/common/channel_decay-inl.h"
#include "kernels/delta_rule_scan/prediction_blocks-inl.h"
#include "kernels/delta_rule_scan/scan_task.h"
#include "kernels/small_gemm/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn {
namespace HWY_NAMESPACE {

// Computes the decays of token `t`, and its key multiplied by them.
HWY_INLINE void DecayedKey(const ScanTask& task, int64_t t, float* HWY_RESTRICT decay, float* HWY_RESTRICT key) {
  const HeadToken token = HeadTokenAt(task.params, t, task.hv);
  ForChannels(task.key_dim, [&](auto d, int64_t c) HWY_ATTR {
    const auto left = ExpOrNaN(d, hn::LoadU(d, token.g + c));
    hn::StoreU(left, d, decay + c);
    hn::StoreU(hn::Mul(left, hn::LoadU(d, token.k + c)), d, key + c);
  });
}

// Scans one token over the slice. Reads its prediction from p; if kPredict, leaves the next token's prediction there.
// `key_next` is the next token's decayed key.
template <bool kPredict>
HWY_INLINE void ChannelScanToken(const ScanTask& task, int64_t t, const float* HWY_RESTRICT decay,
                                 const float* HWY_RESTRICT key_next, hn::Vec<FloatTag> (&p)[kTileVectors]) {
  const FloatTag d;
  using Vec = hn::Vec<FloatTag>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const HeadToken token = HeadTokenAt(task.params, t, task.hv);
  const float* HWY_RESTRICT k = token.k;
  const float* HWY_RESTRICT q = token.q;
  const Vec beta = hn::Set(d, token.beta);

  HWY_ALIGN float row[kTileVectors * 16];
  LoadPanel(token.v + task.column, 0, 1, task.columns, row);
  Vec u[kTileVectors];
  Vec o[kTileVectors];
  HWY_UNROLL(16)
  for (int n = 0; n < kTileVectors; ++n) {
    u[n] = hn::Mul(beta, hn::Sub(hn::LoadU(d, row + n * lanes), p[n]));
    o[n] = hn::Zero(d);
    p[n] = hn::Zero(d);
  }
  float* HWY_RESTRICT state = task.state;
  ForPredictionBlocks<kPredict>(task.key_dim, p, [&](int64_t i, Vec(&part)[kTileVectors]) HWY_ATTR {
    const Vec decay_i = hn::Set(d, decay[i]);
    const Vec k_i = hn::Set(d, k[i]);
    const Vec q_i = hn::Set(d, q[i]);
    const Vec k_next_i = hn::Set(d, key_next[i]);
    HWY_UNROLL(16)
    for (int n = 0; n < kTileVectors; ++n) {
      float* at = state + i * task.state_row + n * lanes;
      const Vec s = hn::MulAdd(k_i, u[n], hn::Mul(decay_i, hn::LoadU(d, at)));
      hn::StoreU(s, d, at);
      o[n] = hn::MulAdd(q_i, s, o[n]);
      if constexpr (kPredict) part[n] = hn::MulAdd(k_next_i, s, part[n]);
    }
  });
  HWY_UNROLL(16)
  for (int n = 0; n < kTileVectors; ++n) hn::StoreU(o[n], d, row + n * lanes);
  StorePanel(row, 1, task.columns, token.output + task.column, 0);
}

HWY_NOINLINE void ChannelScanSlice(const ScanTask& task) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  float* decay = task.factors;
  float* decay_next = decay + task.key_dim;
  float* key = decay_next + task.key_dim;
  DecayedKey(task, task.first, decay, key);
  hn::Vec<FloatTag> p[kTileVectors];
  HWY_UNROLL(16)
  for (int n = 0; n < kTileVectors; ++n) p[n] = hn::Zero(d);  // NOLINT(modernize-loop-convert): unrolled by its count
  ForPredictionBlocks<true>(task.key_dim, p, [&](int64_t i, hn::Vec<FloatTag>(&part)[kTileVectors]) HWY_ATTR {
    const hn::Vec<FloatTag> k_i = hn::Set(d, key[i]);
    HWY_UNROLL(16)
    for (int n = 0; n < kTileVectors; ++n) {
      part[n] = hn::MulAdd(k_i, hn::LoadU(d, task.state + i * task.state_row + n * lanes), part[n]);
    }
  });
  for (int64_t t = task.first; t < task.end; ++t) {
    if (t + 1 < task.end) {
      DecayedKey(task, t + 1, decay_next, key);
      ChannelScanToken<true>(task, t, decay, key, p);
    } else {
      ChannelScanToken<false>(task, t, decay, key, p);
    }
    std::swap(decay, decay_next);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace gdn
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
