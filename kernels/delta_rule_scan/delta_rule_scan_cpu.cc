// A task owns a slice of value columns of one head and keeps its part of the state [K, slice] in the L1 cache for the
// whole sequence. One pass a token does both the update with token t and the prediction for token t + 1:
//   S = e S + k_t u_t^T;  o_t = S^T q_t;  p = S^T k_{t+1}        u_{t+1} = beta (v_{t+1} - e_{t+1} p)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/delta_rule_scan/delta_rule_scan_cpu.cc"
#include "hwy/foreach_target.h"
// foreach_target.h must come first.
#include <algorithm>
#include <type_traits>

#include "base/status_macros.h"
#include "hwy/highway.h"
#include "kernels/common/decay-inl.h"
#include "kernels/common/worker_scratch.h"
#include "kernels/delta_rule_scan/channel_scan-inl.h"
#include "kernels/delta_rule_scan/delta_rule_scan.h"
#include "kernels/delta_rule_scan/prediction_blocks-inl.h"
#include "kernels/delta_rule_scan/scan_task.h"
#include "kernels/small_gemm/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn {
namespace HWY_NAMESPACE {
namespace {

// Calls with fewer tokens work on the slot itself: copying the slice out and back would cost more than it saves.
constexpr int64_t kInPlaceTokens = 4;
constexpr int64_t kDecayBlock = 16;  // tokens whose exp(g) is taken at once

// One token over the slice. Reads the prediction for the token from p, leaves the next token's there if kPredict.
template <bool kPredict>
HWY_INLINE void ScanToken(const ScanTask& task, int64_t t, float decay, hn::Vec<FloatTag> (&p)[kTileVectors]) {
  const FloatTag d;
  using Vec = hn::Vec<FloatTag>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const HeadToken token = HeadTokenAt(task.params, t, task.hv);
  const float* HWY_RESTRICT k = token.k;
  const float* HWY_RESTRICT k_next = kPredict ? k + task.params.k_stride : k;
  const float* HWY_RESTRICT q = token.q;
  const Vec decay_vector = hn::Set(d, decay);
  const Vec beta = hn::Set(d, token.beta);

  HWY_ALIGN float row[kTileVectors * 16];
  LoadPanel(token.v + task.column, 0, 1, task.columns, row);
  Vec u[kTileVectors];
  Vec o[kTileVectors];
  HWY_UNROLL(16)
  for (int n = 0; n < kTileVectors; ++n) {
    u[n] = hn::Mul(beta, hn::NegMulAdd(decay_vector, p[n], hn::LoadU(d, row + n * lanes)));
    o[n] = hn::Zero(d);
    p[n] = hn::Zero(d);
  }
  float* HWY_RESTRICT state = task.state;
  ForPredictionBlocks<kPredict>(task.key_dim, p, [&](int64_t i, Vec(&part)[kTileVectors]) HWY_ATTR {
    const Vec k_i = hn::Set(d, k[i]);
    const Vec q_i = hn::Set(d, q[i]);
    const Vec k_next_i = hn::Set(d, k_next[i]);
    HWY_UNROLL(16)
    for (int n = 0; n < kTileVectors; ++n) {
      float* at = state + i * task.state_row + n * lanes;
      const Vec s = hn::MulAdd(k_i, u[n], hn::Mul(decay_vector, hn::LoadU(d, at)));
      hn::StoreU(s, d, at);
      o[n] = hn::MulAdd(q_i, s, o[n]);
      if constexpr (kPredict) part[n] = hn::MulAdd(k_next_i, s, part[n]);
    }
  });
  HWY_UNROLL(16)
  for (int n = 0; n < kTileVectors; ++n) hn::StoreU(o[n], d, row + n * lanes);
  StorePanel(row, 1, task.columns, token.output + task.column, 0);
}

HWY_NOINLINE void ScanSlice(const ScanTask& task) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<FloatTag> p[kTileVectors];
  HWY_UNROLL(16)
  for (int n = 0; n < kTileVectors; ++n) p[n] = hn::Zero(d);  // NOLINT(modernize-loop-convert): unrolled by its count
  const float* k = HeadTokenAt(task.params, task.first, task.hv).k;
  ForPredictionBlocks<true>(task.key_dim, p, [&](int64_t i, hn::Vec<FloatTag>(&part)[kTileVectors]) HWY_ATTR {
    const hn::Vec<FloatTag> k_i = hn::Set(d, k[i]);
    HWY_UNROLL(16)
    for (int n = 0; n < kTileVectors; ++n) {
      part[n] = hn::MulAdd(k_i, hn::LoadU(d, task.state + i * task.state_row + n * lanes), part[n]);
    }
  });
  HWY_ALIGN float decay[kDecayBlock];
  for (int64_t first = task.first; first < task.end; first += kDecayBlock) {
    const int64_t count = std::min(kDecayBlock, task.end - first);
    double g[kDecayBlock];
    for (int64_t t = 0; t < count; ++t) g[t] = *HeadTokenAt(task.params, first + t, task.hv).g;
    ExpSums(d, g, count, decay);
    for (int64_t t = first; t < first + count; ++t) {
      if (t + 1 < task.end) {
        ScanToken<true>(task, t, decay[t - first], p);
      } else {
        ScanToken<false>(task, t, decay[t - first], p);
      }
    }
  }
}

// `scan` is ScanSlice, or ChannelScanSlice where decays go by channel.
template <typename Base, typename Scan>
void ScanTasksOf(const DeltaRuleParams& params, ThreadPool& pool, const WorkerScratch& scratch, const Scan& scan) {
  const LayerDims& dims = params.pool.layout.dims();
  const int64_t slice_columns = kTileVectors * static_cast<int64_t>(hn::Lanes(FloatTag()));
  const int64_t slices = (dims.value_dim + slice_columns - 1) / slice_columns;
  const int64_t tasks_per_sequence = dims.value_heads * slices;

  const auto run = [&](int64_t index, int worker) HWY_ATTR {
    const int32_t sequence = static_cast<int32_t>(index / tasks_per_sequence);
    const int64_t hv = index % tasks_per_sequence / slices;
    const int64_t column = index % slices * slice_columns;
    const int32_t slot = params.batch.slots[sequence];
    const int64_t tokens = params.batch.length(sequence);
    if (slot < 0 || tokens == 0) return;

    const int64_t first = params.batch.cu_seqlens[sequence];
    const int64_t end = first + tokens;
    ScanTask task{.params = params,
                  .hv = hv,
                  .first = first,
                  .end = end,
                  .key_dim = dims.key_dim,
                  .column = column,
                  .columns = std::min<int64_t>(slice_columns, dims.value_dim - column),
                  .state = nullptr,
                  .state_row = 0,
                  .factors = scratch.piece(worker) + dims.key_dim * slice_columns};
    Base* base = params.pool.base<Base>(slot, hv) + column;
    if constexpr (std::is_same_v<Base, float>) {
      if (tokens < kInPlaceTokens && task.columns == slice_columns) {
        task.state = base;
        task.state_row = dims.value_dim;
        return scan(task);
      }
    }
    task.state = scratch.piece(worker);
    task.state_row = slice_columns;
    const int64_t most = std::is_same_v<Base, float> ? tokens : kBaseRoundTokens;  // from rounding to rounding
    for (; task.first < end; task.first = task.end) {
      task.end = std::min(end, task.first + most);
      // Columns past the head's are computed too, from zeros, and dropped.
      LoadPanel(base, dims.value_dim, dims.key_dim, task.columns, task.state);
      scan(task);
      StorePanel(task.state, dims.key_dim, task.columns, base, dims.value_dim);
    }
  };
  pool.ParallelFor(params.batch.sequences * tasks_per_sequence, run);
}

void ScanTasks(const DeltaRuleParams& params, ThreadPool& pool, const WorkerScratch& scratch) {
  WithBaseElement(params.pool.layout, [&](auto element) {
    using Base = decltype(element);
    if (params.pool.layout.dims().decays_by_channel()) {
      ScanTasksOf<Base>(params, pool, scratch, [](const ScanTask& task) HWY_ATTR { ChannelScanSlice(task); });
    } else {
      ScanTasksOf<Base>(params, pool, scratch, [](const ScanTask& task) HWY_ATTR { ScanSlice(task); });
    }
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace gdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {

HWY_EXPORT(ScanTasks);

absl::Status DeltaRuleScanCpu(const DeltaRuleParams& params, ThreadPool& pool) {
  if (params.batch.tokens() == 0) return absl::OkStatus();
  ZeroPaddingRows(params.batch, params.pool.layout.dims().value_features(), params.output);
  constexpr int64_t kMaxSliceColumns = 2 * 16;
  const LayerDims& dims = params.pool.layout.dims();
  GDN_ASSIGN_OR_RETURN(const WorkerScratch scratch,
                       WorkerScratch::Make(pool.threads(), dims.key_dim * kMaxSliceColumns + ScanFactorFloats(dims)));
  HWY_DYNAMIC_DISPATCH(ScanTasks)(params, pool, scratch);
  return absl::OkStatus();
}

}  // namespace gdn
#endif  // HWY_ONCE
