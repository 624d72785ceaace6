// The decode log on the CPU for one value head with decays by key channel (KDA); the functions of decode_log-inl.h. An
// entry's decay differs by channel, so a step takes sum_c k_i[c] e^{G_t[c] - G_i[c]} k_t[c] from each entry, and
// multiplies k_t and q_t with e^{G_t} for the base. The log stores keys and g undecayed.
//
// G_t - G_i is summed in double from t backwards, g_t first. So every exponent is a plain sum of log decays: never
// above 0, and independent of which call brought the entries. The extra cost over a single decay is one exponential per
// entry and channel; meanwhile the base is prefetched from memory.
// A Highway per-target header: include it below foreach_target.h, in files compiled without contraction. Thread safety:
// free functions. Ownership: none; a ChannelLog points into a slot.
//
//   ChannelLog log;
//   OpenLog(layout, slot, hv, /*entries=*/7, log);
//   FoldHead(log, dims, base, base, scratch);  // scratch: ChannelLog::ScratchFloats(dims, 7)

// Included once per target, so the guard toggles.
#if defined(GDN_KERNELS_DELTA_RULE_DECODE_CHANNEL_LOG_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_DELTA_RULE_DECODE_CHANNEL_LOG_INL_H_
#undef GDN_KERNELS_DELTA_RULE_DECODE_CHANNEL_LOG_INL_H_
#else
#define GDN_KERNELS_DELTA_RULE_DECODE_CHANNEL_LOG_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/layer_dims.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/common/channel_decay-inl.h"
#include "kernels/common/state_layout.h"
#include "kernels/delta_rule_decode/decode_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

// The log of one value head: where its entries are. Nothing is owned.
struct ChannelLog {
  // Cache lines to prefetch per vector of channels: computing one takes as long as fetching about two lines.
  static constexpr int kLinesAhead = 2;
  static constexpr int64_t kLine = 64;

  // Returns the floats of scratch that a worker needs for a step and for a fold of `entries` entries.
  static int64_t ScratchFloats(const LayerDims& dims, int64_t entries) {
    return (3 + 2 * kMaxBlockTokens) * PaddedFactors(dims.key_dim) + entries * (int64_t{dims.key_dim} + dims.value_dim);
  }

  int32_t entries = 0;
  const float* keys[kMaxLogRows];  // [K] each
  const float* g = nullptr;        // entry i at g + i * g_stride, [K]
  int64_t g_stride = 0;
  const float* u = nullptr;  // entry i at u + i * u_stride, [V]
  int64_t u_stride = 0;
  const char* next = nullptr;  // next address of the base to prefetch
  const char* last = nullptr;

  // Sets the range [begin, end) of the base that later steps will read, for AskAhead to prefetch.
  void Expect(const void* begin, const void* end) {
    next = static_cast<const char*>(begin);
    last = static_cast<const char*>(end);
  }
  // Prefetches the next kLinesAhead cache lines of that range, if any are left.
  void AskAhead() {
    for (int i = 0; i < kLinesAhead && next < last; ++i, next += kLine) hwy::Prefetch(next);
  }

  // Sets where u and g of entry 0 are from now on, with the same strides: the entries after a draft's fold are
  // elsewhere. The caller sets `entries` to 0.
  void MoveTo(const float* next_u, const float* next_g) {
    u = next_u;
    g = next_g;
  }
};

// One worker's memory, ChannelLog::ScratchFloats floats that are not owned, divided into buffers.
struct ChannelScratch {
  ChannelScratch(float* data, const LayerDims& dims) {
    const int64_t row = PaddedFactors(dims.key_dim);
    sums = reinterpret_cast<double*>(data);
    decay = data + 2 * row;
    tokens = data + 3 * row;
    fold = tokens + 2 * kMaxBlockTokens * row;
    token_row = row;
  }

  // Addresses of k and q [K] of token `b` of a block, multiplied by e^{G_t}.
  float* k(int b) const { return tokens + 2 * b * token_row; }
  float* q(int b) const { return k(b) + token_row; }

  double* sums;  // [K], sums of log decays, from the newest entry backwards
  float* decay;  // [K], decay of the base
  float* tokens;
  int64_t token_row;
  float* fold;  // [entries, K] and [entries, V]
};

// Points `log` at the first `entries` entries, at most kMaxLogRows, of value head `hv` in the slot at `data`.
HWY_INLINE void OpenLog(const StateLayout& layout, const float* data, int64_t hv, int32_t entries, ChannelLog& log) {
  const LayerDims& dims = layout.dims();
  const float* log_k = data + layout.log_k_offset() + hv / dims.group() * dims.key_dim;
  log.g = data + layout.log_g_offset() + hv * dims.key_dim;
  log.g_stride = dims.decay_features();
  log.u = data + layout.log_u_offset() + hv * dims.value_dim;
  log.u_stride = dims.value_features();
  for (log.entries = 0; log.entries < entries; ++log.entries) {
    log.keys[log.entries] = log_k + log.entries * dims.key_features();
  }
}

// to = diag(e^{G_L}) from + sum_i (e^{G_L - G_i} k_i) u_i^T over all entries of the log; G_L is the last one's. `from`
// and `to` are [K, V] and may be the same. Base is float, or uint16_t for bfloat16, to which it rounds. `scratch` has
// ChannelLog::ScratchFloats(dims, log.entries) floats.
template <typename Base>
HWY_NOINLINE void FoldHead(const ChannelLog& log, const LayerDims& dims, const Base* from, Base* to, float* scratch) {
  const int64_t K = dims.key_dim;
  const int64_t V = dims.value_dim;
  if (log.entries == 0) {
    if (from != to) std::memcpy(to, from, static_cast<size_t>(K * V) * sizeof(Base));
    return;
  }
  const ChannelScratch own(scratch, dims);
  float* keys = own.fold;
  float* u = keys + log.entries * K;  // gathered, because in the slot all rows map to the same cache sets
  std::fill_n(own.sums, K, 0.0);
  std::memcpy(keys + (log.entries - 1) * K, log.keys[log.entries - 1], static_cast<size_t>(K) * sizeof(float));
  for (int32_t e = log.entries - 1; e >= 0; --e) {
    const float* g = log.g + e * log.g_stride;
    ForVectors(K, [&](auto d, int64_t c) HWY_ATTR {
      const auto left = AddDecay(d, g + c, own.sums + c);
      if (e > 0) {
        hn::StoreU(hn::Mul(left, hn::LoadU(d, log.keys[e - 1] + c)), d, keys + (e - 1) * K + c);
      } else {
        hn::StoreU(left, d, own.decay + c);
      }
    });
    std::memcpy(u + e * V, log.u + e * log.u_stride, static_cast<size_t>(V) * sizeof(float));
  }
  FoldTiles({.entries = log.entries, .keys = keys, .u = u, .decay = own.decay, .decay_row = 1}, dims, from, to);
}

// Computes weight_k and weight_q: the products of entry `e` with the k and q of token `at`, decayed from the entry to
// the token. own.sums holds the sums of the log decays after entry e + 1; that entry's are added. wide_k is k in
// double.
HWY_INLINE void EntryProducts(ChannelLog& log, int32_t e, const HeadToken& at, const double* wide_k, int64_t key_dim,
                              const ChannelScratch& own, double& weight_k, float& weight_q) {
  const FloatTag d;
  const float* HWY_RESTRICT g = log.g + (e + 1) * log.g_stride;
  const float* HWY_RESTRICT key = log.keys[e];
  float* HWY_RESTRICT decayed = own.fold;  // [K]; free, because no fold is running
  hn::Vec<FloatTag> sum_q = hn::Zero(d);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  for (; c + lanes <= key_dim; c += lanes) {
    log.AskAhead();
    const hn::Vec<FloatTag> left = hn::Mul(AddDecay(d, g + c, own.sums + c), hn::LoadU(d, key + c));
    hn::StoreU(left, d, decayed + c);
    sum_q = hn::MulAdd(left, hn::LoadU(d, at.q + c), sum_q);
  }
  weight_q = hn::GetLane(hn::SumOfLanes(d, sum_q));
  for (; c < key_dim; ++c) {
    decayed[c] = hn::GetLane(AddDecay(OneLaneTag(), g + c, own.sums + c)) * key[c];
    weight_q += decayed[c] * at.q[c];
  }
  weight_k = WideDot(decayed, wide_k, key_dim);
}

// Adds `count` tokens (at most kMaxBlockTokens), from row `token` of the batch on, to the log of value head `hv`, and
// fills `block` for DecodeBlock to compute them. Writes their g to log_g, entry i at log_g + i * g_stride; their k stay
// in the call's tensor. The log must stay within kLogCapacity entries.
HWY_INLINE void PrepareBlock(const DeltaRuleParams& rule, int64_t token, int count, int64_t hv, ChannelLog& log,
                             float* log_g, float* scratch, TokenBlock& block) {
  const LayerDims& dims = rule.pool.layout.dims();
  const int64_t K = dims.key_dim;
  const ChannelScratch own(scratch, dims);
  block.first_entry = log.entries;
  for (int b = 0; b < count; ++b, ++token) {
    const int32_t entry = log.entries++;
    const HeadToken at = HeadTokenAt(rule, token, hv);
    log.keys[entry] = at.k;
    std::memcpy(log_g + entry * log.g_stride, at.g, static_cast<size_t>(K) * sizeof(float));
    std::fill_n(own.sums, K, 0.0);
    block.weight_q[b][entry] = Dot(at.k, at.q, K);
    HWY_ALIGN double wide_k[kMaxHeadDim];
    Widen(at.k, K, wide_k);
    for (int32_t e = entry - 1; e >= 0; --e) {
      double weight_k;
      EntryProducts(log, e, at, wide_k, K, own, weight_k, block.weight_q[b][e]);
      block.SetWeightK(b, e, weight_k);
    }
    ForVectors(K, [&](auto d, int64_t c) HWY_ATTR {
      const auto left = AddDecay(d, log.g + c, own.sums + c);
      hn::StoreU(hn::Mul(left, hn::LoadU(d, at.k + c)), d, own.k(b) + c);
      hn::StoreU(hn::Mul(left, hn::LoadU(d, at.q + c)), d, own.q(b) + c);
    });
    block.decay[b] = 1.0f;
    block.tokens[b] = at;
    block.tokens[b].k = own.k(b);
    block.tokens[b].q = own.q(b);
  }
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
