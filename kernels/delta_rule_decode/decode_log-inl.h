// The decode log on the CPU, as one value head sees it, and the fold of it into the head's base. The decode step and
// MaterializeStateCpu share it, so that a state folded by either has the same bits.
//
// A Highway per-target header: include it below foreach_target.h, in files compiled without contraction. Thread safety:
// free functions. Ownership: none; a HeadLog points into a slot.
//
//   HeadLog log;
//   OpenLog(layout, slot, hv, /*entries=*/7, log);
//   FoldHead(log, dims, base, base, scratch);  // scratch: FoldScratchFloats(dims, 7)

// Included once a target, so the guard toggles.
#if defined(GDN_KERNELS_DELTA_RULE_DECODE_DECODE_LOG_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_DELTA_RULE_DECODE_DECODE_LOG_INL_H_
#undef GDN_KERNELS_DELTA_RULE_DECODE_DECODE_LOG_INL_H_
#else
#define GDN_KERNELS_DELTA_RULE_DECODE_DECODE_LOG_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/common/decay-inl.h"
#include "kernels/common/state_layout.h"
#include "kernels/small_gemm/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn {
namespace HWY_NAMESPACE {

using OneLaneTag = hn::CappedTag<float, 1>;  // for the columns that do not fill a vector

inline constexpr int32_t kMaxLogRows = kLogCapacity + kMaxDraftLimit;

// Scratch for a fold of one head: keys times their factors, and the u's.
constexpr int64_t FoldScratchFloats(const LayerDims& dims, int64_t entries) {
  return entries * (int64_t{dims.key_dim} + dims.value_dim);
}

// The log of one head.
struct HeadLog {
  int32_t entries = 0;
  const float* keys[kMaxLogRows];  // [K] each
  double sums[kMaxLogRows];        // G: running sums of g since the base
  const float* u = nullptr;        // entry i at u + i * u_stride, [V]
  int64_t u_stride = 0;
};

// The first `entries` entries of head `hv` in the slot at `data`.
HWY_INLINE void OpenLog(const StateLayout& layout, const float* data, int64_t hv, int32_t entries, HeadLog& log) {
  const LayerDims& dims = layout.dims();
  const float* log_k = data + layout.log_k_offset() + hv / dims.group() * dims.key_dim;
  const float* log_g = data + layout.log_g_offset() + hv;
  log.u = data + layout.log_u_offset() + hv * dims.value_dim;
  log.u_stride = dims.value_features();
  for (log.entries = 0; log.entries < entries; ++log.entries) {
    const int32_t e = log.entries;
    log.keys[e] = log_k + e * dims.key_features();
    log.sums[e] = (e > 0 ? log.sums[e - 1] : 0.0) + double{log_g[e * dims.value_heads]};
  }
}

// Tile of rows [row, row + kRows) and kVectors vectors of columns of a fold.
template <int kRows, int kVectors, class D, typename Base>
HWY_INLINE void FoldTile(D d, float decay, int64_t entries, const float* keys, int64_t key_dim, const float* u,
                         int64_t value_dim, const Base* from, Base* to) {
  hn::Vec<D> acc[kRows][kVectors];
  LoadScaledTile(d, decay, from, value_dim, acc);
  MultiplyAccumulate(d, entries, keys, /*a_row=*/1, /*a_column=*/key_dim, u, value_dim, acc);
  StoreTile(d, acc, to, value_dim);
}

// to = exp(G_L) from + sum_i exp(G_L - G_i) k_i u_i^T, both [K, V], maybe the same; Base is float, or uint16_t for
// bfloat16. scratch: FoldScratchFloats.
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
  float* u = scratch + log.entries * K;  // [entries, V]; gathered, for in the slot all rows share their cache sets
  for (int32_t e = 0; e < log.entries; ++e) {
    for (int64_t i = 0; i < K; ++i) keys[e * K + i] = factors[e] * log.keys[e][i];
    std::memcpy(u + e * V, log.u + e * log.u_stride, static_cast<size_t>(V) * sizeof(float));
  }
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  ForRowTiles(K, [&](auto tile, int64_t row) HWY_ATTR {
    constexpr int kRows = decltype(tile)::value;
    int64_t at = row * V;
    const int64_t end = at + V;
    const auto fold = [&](auto tag, auto vectors) HWY_ATTR {
      FoldTile<kRows, decltype(vectors)::value>(tag, decay[0], log.entries, keys + row, K, u + at - row * V, V,
                                                from + at, to + at);
    };
    for (; at + kTileVectors * lanes <= end; at += kTileVectors * lanes) {
      fold(d, std::integral_constant<int, kTileVectors>());
    }
    for (; at + lanes <= end; at += lanes) fold(d, std::integral_constant<int, 1>());
    for (; at < end; ++at) fold(OneLaneTag(), std::integral_constant<int, 1>());
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace gdn
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
