// A task owns a run of value columns of some value heads that share a key head, chunk after chunk:
//   once a chunk       k k^T and q k^T (lower part)                       shared by the task's heads
//   once a head        A and P = tril(q k^T e^{G_i - G_j})
//   once a panel       U, O and the new state, a panel being the columns of one register tile; its part of the state
//                      [K, panel] and of U [C, panel] stay in the L1 cache
// Rows are computed top down, each from rows above it alone: row i's sums run over j < i (or j <= i) in order, whatever
// the tile, so neither the partition nor later tokens can change a bit of it. The last panel is padded with zeros.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/delta_rule_chunk/delta_rule_chunk_cpu.cc"
#include "hwy/foreach_target.h"
// foreach_target.h must come first.
#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "hwy/highway.h"
#include "kernels/common/decay-inl.h"
#include "kernels/common/log_decay.h"
#include "kernels/common/worker_scratch.h"
#include "kernels/delta_rule_chunk/channel_chunk_cpu.h"
#include "kernels/delta_rule_chunk/chunk_panel-inl.h"
#include "kernels/delta_rule_chunk/chunk_partition.h"
#include "kernels/delta_rule_chunk/chunk_scratch.h"
#include "kernels/delta_rule_chunk/delta_rule_chunk.h"
#include "kernels/delta_rule_scan/delta_rule_scan.h"
#include "kernels/small_gemm/small_gemm-inl.h"
#include "kernels/small_gemm/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kC = kChunkTokens;

// Decay and write strength of one head's tokens in a chunk.
struct ChunkGates {
  HWY_ALIGN float decay[kC];   // e^{G_i}
  HWY_ALIGN float to_end[kC];  // e^{G_C - G_i}
  float beta[kC];
  float chunk_decay;  // e^{G_C}
};

// k k^T and q k^T on and below the diagonal.
void KeyProducts(const ChunkScratch& scratch, int64_t tokens, int64_t key_dim) {
  const FloatTag d;
  const int64_t width = kTileVectors * static_cast<int64_t>(hn::Lanes(d));
  ForRowTiles(tokens, [&](auto tile, int64_t row) HWY_ATTR {
    constexpr int kRows = decltype(tile)::value;
    for (int64_t column = 0; column < row + kRows; column += width) {
      hn::Vec<FloatTag> acc[kRows][kTileVectors];
      SetTile(d, 0.0f, acc);
      MultiplyAccumulate(d, key_dim, scratch.k + row * key_dim, key_dim, 1, scratch.k_t + column, kC, acc);
      StoreTile(d, acc, scratch.kk + row * kC + column, kC);
      SetTile(d, 0.0f, acc);
      MultiplyAccumulate(d, key_dim, scratch.q + row * key_dim, key_dim, 1, scratch.k_t + column, kC, acc);
      StoreTile(d, acc, scratch.qk + row * kC + column, kC);
    }
  });
}

// The gates of a head, and its -A and P from k k^T and q k^T.
void HeadMatrices(const ChunkScratch& scratch, const float* g, const float* beta, int64_t stride, int64_t tokens,
                  ChunkGates& gates) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  double sums[kC];
  double sum = 0.0;
  for (int64_t i = 0; i < tokens; ++i) {
    sum += double{ClampLogDecay(g[i * stride])};
    sums[i] = sum;
    gates.beta[i] = beta[i * stride];
  }
  ExpSums(d, sums, tokens, gates.decay);
  ExpDifferences(d, sum, sums, tokens, gates.to_end);
  gates.chunk_decay = gates.decay[tokens - 1];

  HWY_ALIGN float factors[kC];
  for (int64_t i = 0; i < tokens; ++i) {
    ExpDifferences(d, sums[i], sums, i + 1, factors);
    const hn::Vec<FloatTag> minus_beta = hn::Set(d, -gates.beta[i]);
    // Whole vectors: what lands right of the diagonal is never read.
    for (int64_t j = 0; j <= i; j += lanes) {
      const hn::Vec<FloatTag> factor = hn::LoadU(d, factors + j);
      const int64_t at = i * kC + j;
      hn::StoreU(hn::Mul(minus_beta, hn::Mul(factor, hn::LoadU(d, scratch.kk + at))), d, scratch.a + at);
      hn::StoreU(hn::Mul(factor, hn::LoadU(d, scratch.qk + at)), d, scratch.p + at);
    }
  }
}

// A whole chunk of one panel: values -> outputs, state -> state.
HWY_NOINLINE void Panel(const ChunkScratch& scratch, const ChunkGates& gates, int64_t tokens, int64_t key_dim,
                        RowFetcher& ahead) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = kTileVectors * lanes;
  const PanelOperands operands{.q = scratch.q,
                               .k = scratch.k,
                               .key_row = key_dim,
                               .key_dim = key_dim,
                               .a = scratch.a,
                               .p = scratch.p,
                               .decay = gates.decay,
                               .beta = gates.beta,
                               .state = scratch.state,
                               .u = scratch.u,
                               .values = scratch.values,
                               .ahead = ahead};
  ForRowTiles(tokens, [&](auto tile, int64_t row) HWY_ATTR { PanelRows<decltype(tile)::value>(operands, row); });
  // S = e^{G_C} S + K^T (e^{G_C - G} U)
  for (int64_t i = 0; i < tokens; ++i) {
    const hn::Vec<FloatTag> factor = hn::Set(d, gates.to_end[i]);
    for (int64_t j = 0; j < width; j += lanes) {
      hn::StoreU(hn::Mul(factor, hn::LoadU(d, scratch.u + i * width + j)), d, scratch.decayed + i * width + j);
    }
  }
  ForRowTiles(key_dim, [&](auto tile, int64_t row) HWY_ATTR {
    hn::Vec<FloatTag> acc[decltype(tile)::value][kTileVectors];
    LoadScaledTile(d, gates.chunk_decay, scratch.state + row * width, width, acc);
    MultiplyAccumulate(d, tokens, scratch.k_t + row * kC, kC, 1, scratch.decayed, width, acc);
    StoreTile(d, acc, scratch.state + row * width, width);
    ahead.Fetch();
  });
}

void LoadKeyHead(const DeltaRuleParams& params, int64_t first, int64_t tokens, int64_t h, const ChunkScratch& scratch) {
  const int64_t key_dim = params.pool.layout.dims().key_dim;
  const size_t row_bytes = static_cast<size_t>(key_dim) * sizeof(float);
  for (int64_t i = 0; i < tokens; ++i) {
    std::memcpy(scratch.q + i * key_dim, params.q + (first + i) * params.q_stride + h * key_dim, row_bytes);
    std::memcpy(scratch.k + i * key_dim, params.k + (first + i) * params.k_stride + h * key_dim, row_bytes);
  }
  TransposeRows(scratch.k, key_dim, tokens, key_dim, scratch.k_t, kC);
  // What pads a part of a chunk may be multiplied, though nothing is made of it.
  for (int64_t c = 0; tokens < kC && c < key_dim; ++c) {
    std::fill(scratch.k_t + c * kC + tokens, scratch.k_t + (c + 1) * kC, 0.0f);
  }
}

// The state goes through the base after every chunk, which is where a base of bfloat16 is to be rounded.
static_assert(kC == kBaseRoundTokens);
template <typename Base>
void RunTask(const DeltaRuleParams& params, int32_t sequence, int64_t first_head, const Partition& partition,
             int64_t first_column, const ChunkScratch& scratch) {
  const LayerDims& dims = params.pool.layout.dims();
  const int64_t key_dim = dims.key_dim;
  const int64_t value_dim = dims.value_dim;
  const int64_t panel_columns = kTileVectors * static_cast<int64_t>(hn::Lanes(FloatTag()));
  const int64_t last_column = std::min<int64_t>(value_dim, first_column + partition.panels * panel_columns);
  ChunkGates gates;
  const int64_t end = params.batch.cu_seqlens[sequence + 1];
  for (int64_t token = params.batch.cu_seqlens[sequence]; token < end; token += kC) {
    const int64_t tokens = std::min(kC, end - token);
    RowFetcher ahead = NextChunk(params, token + kC, end, first_head, partition.heads, first_column, last_column);
    LoadKeyHead(params, token, tokens, first_head / dims.group(), scratch);
    KeyProducts(scratch, tokens, key_dim);
    for (int64_t hv = first_head; hv < first_head + partition.heads; ++hv) {
      const int64_t gate = token * dims.value_heads + hv;
      HeadMatrices(scratch, params.g + gate, params.beta + gate, dims.value_heads, tokens, gates);
      for (int64_t column = first_column; column < last_column; column += panel_columns) {
        const int64_t columns = std::min(panel_columns, value_dim - column);
        const int64_t value_offset = hv * value_dim + column;
        Base* state = params.pool.base<Base>(params.batch.slots[sequence], hv) + column;
        float* output = params.output + token * dims.value_features() + value_offset;
        const float* v = params.v + token * params.v_stride + value_offset;
        LoadPanel(state, value_dim, key_dim, columns, scratch.state);
        LoadPanel(v, params.v_stride, tokens, columns, scratch.values);
        Panel(scratch, gates, tokens, key_dim, ahead);
        StorePanel(scratch.values, tokens, columns, output, dims.value_features());
        StorePanel(scratch.state, key_dim, columns, state, value_dim);
      }
    }
  }
}

void ChunkTasks(const DeltaRuleParams& params, ThreadPool& pool, const WorkerScratch& scratch) {
  const LayerDims& dims = params.pool.layout.dims();
  const int64_t panel_columns = kTileVectors * static_cast<int64_t>(hn::Lanes(FloatTag()));
  const int64_t panels = (dims.value_dim + panel_columns - 1) / panel_columns;
  const Partition partition = ChoosePartition(dims, params.batch.sequences, panels, pool.threads());
  const int64_t cuts = (panels + partition.panels - 1) / partition.panels;
  const int64_t head_groups = dims.value_heads / partition.heads;  // NOLINT(clang-analyzer-core.DivideZero)
  pool.ParallelFor(params.batch.sequences * head_groups * cuts, [&](int64_t index, int worker) {
    const int32_t sequence = static_cast<int32_t>(index / (head_groups * cuts));
    if (params.batch.slots[sequence] < 0) return;
    const int64_t first_head = index / cuts % head_groups * partition.heads;
    WithBaseElement(params.pool.layout, [&](auto element) {
      RunTask<decltype(element)>(params, sequence, first_head, partition,
                                 index % cuts * partition.panels * panel_columns,
                                 ChunkScratch(scratch.piece(worker), dims.key_dim));
    });
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace gdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {
HWY_EXPORT(ChunkTasks);

absl::Status DeltaRuleChunkCpu(const DeltaRuleParams& params, ThreadPool& pool) {
  if (ChunkTakesScan(params)) return DeltaRuleScanCpu(params, pool);
  if (params.batch.tokens() == 0) return absl::OkStatus();
  ZeroPaddingRows(params.batch, params.pool.layout.dims().value_features(), params.output);
  if (params.pool.layout.dims().decays_by_channel()) return ChannelChunkCpu(params, pool);
  GDN_ASSIGN_OR_RETURN(const WorkerScratch scratch,
                       WorkerScratch::Make(pool.threads(), ChunkScratch::Floats(params.pool.layout.dims().key_dim)));
  HWY_DYNAMIC_DISPATCH(ChunkTasks)(params, pool, scratch);
  return absl::OkStatus();
}

}  // namespace gdn
#endif  // HWY_ONCE
