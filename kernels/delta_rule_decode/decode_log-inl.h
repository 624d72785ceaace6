// The decode log on the CPU for one value head with one decay: what a step takes from it, and its fold into the head's
// base. Shared by the decode step and MaterializeStateCpu, so that a state folded by either has the same bits.
// channel_log-inl.h has the same functions for decays by key channel.
//
// A Highway per-target header: include it below foreach_target.h, in files compiled without contraction. Thread safety:
// free functions. Ownership: none; a HeadLog points into a slot.
//
//   HeadLog log;
//   OpenLog(layout, slot, hv, /*entries=*/7, log);
//   FoldHead(log, dims, base, base, scratch);  // scratch: HeadLog::ScratchFloats(dims, 7)

// Included once per target, so the guard toggles.
#if defined(GDN_KERNELS_DELTA_RULE_DECODE_DECODE_LOG_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_DELTA_RULE_DECODE_DECODE_LOG_INL_H_
#undef GDN_KERNELS_DELTA_RULE_DECODE_DECODE_LOG_INL_H_
#else
#define GDN_KERNELS_DELTA_RULE_DECODE_DECODE_LOG_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/layer_dims.h"
#include "hwy/highway.h"
#include "kernels/common/decay-inl.h"
#include "kernels/common/log_decay.h"
#include "kernels/common/state_layout.h"
#include "kernels/delta_rule_decode/decode_block-inl.h"
#include "kernels/small_gemm/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

// The log of one value head: where its entries are, and the sums of their decays. Nothing is owned.
struct HeadLog {
  // Returns the floats of scratch that a worker needs for a fold of `entries` entries: keys times their factors, and u.
  static int64_t ScratchFloats(const LayerDims& dims, int64_t entries) {
    return entries * (int64_t{dims.key_dim} + dims.value_dim);
  }

  int32_t entries = 0;
  const float* keys[kMaxLogRows];  // [K] each
  double sums[kMaxLogRows];        // G: running sums of clamped g since the base
  const float* u = nullptr;        // entry i at u + i * u_stride, [V]
  int64_t u_stride = 0;

  void Expect(const void* /*begin*/, const void* /*end*/) {}

  // Sets where u of entry 0 is from now on, with the same stride: the entries after a draft's fold are elsewhere. The
  // caller sets `entries` to 0.
  void MoveTo(const float* next_u, const float* /*next_g*/) { u = next_u; }
};

// Points `log` at the first `entries` entries, at most kMaxLogRows, of value head `hv` in the slot at `data`.
HWY_INLINE void OpenLog(const StateLayout& layout, const float* data, int64_t hv, int32_t entries, HeadLog& log) {
  const LayerDims& dims = layout.dims();
  const float* log_k = data + layout.log_k_offset() + hv / dims.group() * dims.key_dim;
  const float* log_g = data + layout.log_g_offset() + hv;
  log.u = data + layout.log_u_offset() + hv * dims.value_dim;
  log.u_stride = dims.value_features();
  for (log.entries = 0; log.entries < entries; ++log.entries) {
    const int32_t e = log.entries;
    log.keys[e] = log_k + e * dims.key_features();
    log.sums[e] = (e > 0 ? log.sums[e - 1] : 0.0) + double{ClampLogDecay(log_g[e * dims.value_heads])};
  }
}

// to = exp(G_L) from + sum_i exp(G_L - G_i) k_i u_i^T over all entries of the log; G_L is the last one's. `from` and
// `to` are [K, V] and may be the same. Base is float, or uint16_t for bfloat16, to which it rounds. `scratch` has
// HeadLog::ScratchFloats(dims, log.entries) floats.
template <typename Base>
HWY_NOINLINE void FoldHead(const HeadLog& log, const LayerDims& dims, const Base* from, Base* to, float* scratch) {
  const FloatTag d;
  const int64_t K = dims.key_dim;
  const int64_t V = dims.value_dim;
  if (log.entries == 0) {
    if (from != to) std::memcpy(to, from, static_cast<size_t>(K * V) * sizeof(Base));
    return;
  }
  const double newest = log.sums[log.entries - 1];
  HWY_ALIGN float factors[PaddedFactors(kMaxLogRows)];
  ExpDifferences(d, newest, log.sums, log.entries, factors);
  HWY_ALIGN float decay[PaddedFactors(1)];
  ExpSums(d, &newest, 1, decay);

  float* keys = scratch;                 // [entries, K], each times its factor
  float* u = scratch + log.entries * K;  // [entries, V]; gathered, as in the slot all rows share cache sets
  for (int32_t e = 0; e < log.entries; ++e) {
    for (int64_t i = 0; i < K; ++i) keys[e * K + i] = factors[e] * log.keys[e][i];
    std::memcpy(u + e * V, log.u + e * log.u_stride, static_cast<size_t>(V) * sizeof(float));
  }
  FoldTiles({.entries = log.entries, .keys = keys, .u = u, .decay = decay, .decay_row = 0}, dims, from, to);
}

// Adds `count` tokens (at most kMaxBlockTokens), from row `token` of the batch on, to the log of value head `hv`, and
// fills `block` for DecodeBlock to compute them. Writes their g to log_g, entries HV apart; their k stay in the call's
// tensor. The log must stay within kLogCapacity entries.
HWY_INLINE void PrepareBlock(const DeltaRuleParams& rule, int64_t token, int count, int64_t hv, HeadLog& log,
                             float* log_g, float* /*scratch*/, TokenBlock& block) {
  const FloatTag d;
  const LayerDims& dims = rule.pool.layout.dims();
  block.first_entry = log.entries;
  for (int b = 0; b < count; ++b, ++token) {
    const int32_t entry = log.entries++;
    const HeadToken at = HeadTokenAt(rule, token, hv);
    block.tokens[b] = at;
    log.keys[entry] = at.k;
    log_g[entry * dims.value_heads] = *at.g;
    log.sums[entry] = (entry > 0 ? log.sums[entry - 1] : 0.0) + double{ClampLogDecay(*at.g)};
    HWY_ALIGN float decay[PaddedFactors(1)];
    ExpSums(d, &log.sums[entry], 1, decay);
    block.decay[b] = decay[0];
    HWY_ALIGN float factors[PaddedFactors(kLogCapacity)];
    ExpDifferences(d, log.sums[entry], log.sums, entry, factors);
    HWY_ALIGN double wide_k[kMaxHeadDim];
    Widen(at.k, dims.key_dim, wide_k);
    for (int32_t e = 0; e < entry; ++e) {
      block.SetWeightK(b, e, double{factors[e]} * WideDot(log.keys[e], wide_k, dims.key_dim));
      block.weight_q[b][e] = factors[e] * Dot(log.keys[e], at.q, dims.key_dim);
    }
    block.weight_q[b][entry] = Dot(at.k, at.q, dims.key_dim);
  }
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
