// A task owns a slice of value columns of one head and keeps its part of the state [K, slice] in the L1 cache for the
// whole sequence. One pass a token does both the update with token t and the prediction for token t + 1:
//   S = e S + k_t u_t^T;  o_t = S^T q_t;  p = S^T k_{t+1}        u_{t+1} = beta (v_{t+1} - e_{t+1} p)
// If decays go by key channel, each row of S has a decay e_t[c] = e^{g_t[c]}, and the next key is decayed instead:
//   S = diag(e_t) S + k_t u_t^T;  o_t = S^T q_t;  p = S^T (e_{t+1} k_{t+1})        u_{t+1} = beta (v_{t+1} - p)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/delta_rule_scan/delta_rule_scan_cpu.cc"
#include "hwy/foreach_target.h"
// foreach_target.h must come first.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/status_macros.h"
#include "hwy/highway.h"
#include "kernels/common/channel_decay-inl.h"
#include "kernels/common/decay-inl.h"
#include "kernels/common/worker_scratch.h"
#include "kernels/delta_rule_scan/delta_rule_scan.h"
#include "kernels/small_gemm/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {
namespace {

// Calls with fewer tokens work on the slot itself: copying the slice out and back would cost more than it saves.
constexpr int64_t kInPlaceTokens = 4;
constexpr int64_t kDecayBlock = 16;  // tokens whose exp(g) is taken at once

using SliceVectors = hn::Vec<FloatTag>[kTileVectors];  // a row of the slice

// One worker's share: a slice of value columns of one head, for a run of tokens of one sequence.
struct ScanTask {
  const DeltaRuleParams& params;
  int64_t hv;
  int64_t first;  // token
  int64_t end;
  int64_t key_dim;
  int64_t column;   // first value column
  int64_t columns;  // number of columns, at most two vectors
  float* state;     // [K, slice]
  int64_t state_row;
  float* factors;  // scratch of FactorFloats floats
};

// Calls row(i, part) for each i < key_dim, which adds its products to `part`. If kPredict, p += part after every 16
// rows. If beta is near 2, the state keeps the error of every prediction, and one chain of K sums would err most.
template <bool kPredict, class Row>
HWY_INLINE void ForPredictionBlocks(int64_t key_dim, SliceVectors& p, const Row& row) {
  constexpr int64_t kBlock = 16;
  const FloatTag d;
  for (int64_t first = 0; first < key_dim; first += kBlock) {
    const int64_t end = std::min(key_dim, first + kBlock);
    SliceVectors part;
    HWY_UNROLL(16)
    for (int n = 0; n < kTileVectors; ++n) part[n] = hn::Zero(d);  // NOLINT(modernize-loop-convert): unrolled
    for (int64_t i = first; i < end; ++i) row(i, part);
    HWY_UNROLL(16)
    for (int n = 0; kPredict && n < kTileVectors; ++n) p[n] = hn::Add(p[n], part[n]);
  }
}

// p = S^T key, the prediction for a task's first token.
HWY_INLINE void PredictFirst(const ScanTask& task, const float* key, SliceVectors& p) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_UNROLL(16)
  for (int n = 0; n < kTileVectors; ++n) p[n] = hn::Zero(d);  // NOLINT(modernize-loop-convert): unrolled by its count
  ForPredictionBlocks<true>(task.key_dim, p, [&](int64_t i, SliceVectors& part) HWY_ATTR {
    const hn::Vec<FloatTag> k_i = hn::Set(d, key[i]);
    HWY_UNROLL(16)
    for (int n = 0; n < kTileVectors; ++n) {
      part[n] = hn::MulAdd(k_i, hn::LoadU(d, task.state + i * task.state_row + n * lanes), part[n]);
    }
  });
}

// Scans one token over the slice. Reads its prediction from p; if kPredict, leaves the next token's prediction there.
// `decay` is the token's factor, or [K] if kByChannel; `k_next` is the next token's key, decayed if kByChannel.
template <bool kByChannel, bool kPredict>
HWY_INLINE void ScanToken(const ScanTask& task, int64_t t, const float* HWY_RESTRICT decay,
                          const float* HWY_RESTRICT k_next, SliceVectors& p) {
  const FloatTag d;
  using Vec = hn::Vec<FloatTag>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const HeadToken token = HeadTokenAt(task.params, t, task.hv);
  const float* HWY_RESTRICT k = token.k;
  const float* HWY_RESTRICT q = token.q;
  const Vec head_decay = hn::Set(d, *decay);
  const Vec beta = hn::Set(d, token.beta);

  HWY_ALIGN float row[kTileVectors * 16];
  LoadPanel(token.v + task.column, 0, 1, task.columns, row);
  SliceVectors u;
  SliceVectors o;
  HWY_UNROLL(16)
  for (int n = 0; n < kTileVectors; ++n) {
    const Vec v = hn::LoadU(d, row + n * lanes);
    u[n] = hn::Mul(beta, kByChannel ? hn::Sub(v, p[n]) : hn::NegMulAdd(head_decay, p[n], v));
    o[n] = hn::Zero(d);
    p[n] = hn::Zero(d);
  }
  float* HWY_RESTRICT state = task.state;
  ForPredictionBlocks<kPredict>(task.key_dim, p, [&](int64_t i, SliceVectors& part) HWY_ATTR {
    const Vec decay_i = kByChannel ? hn::Set(d, decay[i]) : head_decay;
    const Vec k_i = hn::Set(d, k[i]);
    const Vec q_i = hn::Set(d, q[i]);
    const Vec k_next_i = kPredict ? hn::Set(d, k_next[i]) : q_i;
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

HWY_NOINLINE void ScanSlice(const ScanTask& task) {
  SliceVectors p;
  PredictFirst(task, HeadTokenAt(task.params, task.first, task.hv).k, p);
  HWY_ALIGN float decay[kDecayBlock];
  for (int64_t first = task.first; first < task.end; first += kDecayBlock) {
    const int64_t count = std::min(kDecayBlock, task.end - first);
    double g[kDecayBlock];
    for (int64_t t = 0; t < count; ++t) g[t] = *HeadTokenAt(task.params, first + t, task.hv).g;
    ExpSums(FloatTag(), g, count, decay);
    for (int64_t t = first; t < first + count; ++t) {
      if (t + 1 < task.end) {
        ScanToken<false, true>(task, t, decay + (t - first), HeadTokenAt(task.params, t + 1, task.hv).k, p);
      } else {
        ScanToken<false, false>(task, t, decay + (t - first), /*k_next=*/nullptr, p);
      }
    }
  }
}

// Computes the decays of token `t`, and its key multiplied by them.
HWY_INLINE void DecayedKey(const ScanTask& task, int64_t t, float* HWY_RESTRICT decay, float* HWY_RESTRICT key) {
  const HeadToken token = HeadTokenAt(task.params, t, task.hv);
  ForVectors(task.key_dim, [&](auto d, int64_t c) HWY_ATTR {
    const auto left = ExpOrNaN(d, hn::LoadU(d, token.g + c));
    hn::StoreU(left, d, decay + c);
    hn::StoreU(hn::Mul(left, hn::LoadU(d, token.k + c)), d, key + c);
  });
}

HWY_NOINLINE void ChannelScanSlice(const ScanTask& task) {
  float* decay = task.factors;
  float* decay_next = decay + task.key_dim;
  float* key = decay_next + task.key_dim;
  DecayedKey(task, task.first, decay, key);
  SliceVectors p;
  PredictFirst(task, key, p);
  for (int64_t t = task.first; t < task.end; ++t) {
    if (t + 1 < task.end) {
      DecayedKey(task, t + 1, decay_next, key);
      ScanToken<true, true>(task, t, decay, key, p);
    } else {
      ScanToken<true, false>(task, t, decay, key, p);
    }
    std::swap(decay, decay_next);
  }
}

template <typename Base>
void ScanTasksOf(const DeltaRuleParams& params, ThreadPool& pool, const WorkerScratch& scratch) {
  const LayerDims& dims = params.pool.layout.dims();
  const auto scan = dims.decays_by_channel() ? ChannelScanSlice : ScanSlice;
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
  WithBaseElement(params.pool.layout, [&](auto element) { ScanTasksOf<decltype(element)>(params, pool, scratch); });
}

}  // namespace
}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {
namespace {

// Floats for the decays of two tokens and one decayed key; 0 unless decays go by channel.
int64_t FactorFloats(const LayerDims& dims) { return dims.decays_by_channel() ? 3 * int64_t{dims.key_dim} : 0; }

}  // namespace

HWY_EXPORT(ScanTasks);

absl::Status DeltaRuleScanCpu(const DeltaRuleParams& params, ThreadPool& pool) {
  if (params.batch.tokens() == 0) return absl::OkStatus();
  ZeroPaddingRows(params.batch, params.pool.layout.dims().value_features(), params.output);
  constexpr int64_t kMaxSliceColumns = 2 * 16;
  const LayerDims& dims = params.pool.layout.dims();
  GDN_ASSIGN_OR_RETURN(const WorkerScratch scratch,
                       WorkerScratch::Make(pool.threads(), dims.key_dim * kMaxSliceColumns + FactorFloats(dims)));
  HWY_DYNAMIC_DISPATCH(ScanTasks)(params, pool, scratch);
  return absl::OkStatus();
}

}  // namespace gdn
#endif  // HWY_ONCE
