// A task owns a run of value columns of some value heads that share a key head, chunk after chunk:
//   once a chunk       k k^T and q k^T (lower part)                       shared by the task's heads
//   once a head        A and P = tril(q k^T e^{G_i - G_j})
//   once a panel       U, O and the new state, a panel being the columns of one register tile; its part of the state
//                      [K, panel] and of U [C, panel] stay in the L1 cache
// The task's states are in panels from its first chunk to its last.
// Rows are computed top down, each from rows above it alone: row i's sums run over j < i (or j <= i) in order, whatever
// the tile, so neither the partition nor later tokens can change a bit of it. The last panel is padded with zeros.
//
// If decays go by key channel, a task has one value head. Once a chunk it makes the head's A and P, its keys and
// queries decayed from the chunk's start and its keys decayed to the chunk's end (channel_products-inl.h); the new
// state is
//   S <- diag(e^{G_C}) S + (e^{G_C - G} k)^T U
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/delta_rule_chunk/delta_rule_chunk_cpu.cc"
#include "hwy/foreach_target.h"
// foreach_target.h must come first.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/status_macros.h"
#include "hwy/highway.h"
#include "kernels/common/decay-inl.h"
#include "kernels/common/log_decay.h"
#include "kernels/common/worker_scratch.h"
#include "kernels/delta_rule_chunk/channel_products-inl.h"
#include "kernels/delta_rule_chunk/chunk_panel-inl.h"
#include "kernels/delta_rule_chunk/chunk_partition.h"
#include "kernels/delta_rule_chunk/chunk_scratch.h"
#include "kernels/delta_rule_chunk/delta_rule_chunk.h"
#include "kernels/delta_rule_scan/delta_rule_scan.h"
#include "kernels/small_gemm/small_gemm-inl.h"
#include "kernels/small_gemm/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {
namespace {

constexpr int64_t kC = kChunkTokens;

// Decay and write strength of one head's tokens in a chunk.
struct ChunkGates {
  HWY_ALIGN float decay[kC];   // e^{G_i}
  HWY_ALIGN float to_end[kC];  // e^{G_C - G_i}
  float beta[kC];
  float chunk_decay;  // e^{G_C}
};

// A worker's data of a chunk whose heads have one decay each; ChannelChunkScratch is that for decays by channel.
struct HeadChunk {
  HeadChunk(float* data, int64_t key_dim) : scratch(data, key_dim) {}
  static int64_t Floats(int64_t key_dim) { return ChunkScratch::Floats(key_dim); }

  const ChunkScratch scratch;
  ChunkGates gates;
};
const ChunkScratch& ScratchOf(const HeadChunk& chunk) { return chunk.scratch; }
const ChannelChunkScratch& ScratchOf(const ChannelChunkScratch& chunk) { return chunk; }

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
void HeadMatrices(const DeltaRuleParams& params, int64_t first, int64_t tokens, int64_t hv, HeadChunk& chunk) {
  const ChunkScratch& scratch = chunk.scratch;
  ChunkGates& gates = chunk.gates;
  const int64_t stride = params.pool.layout.dims().value_heads;
  const float* g = params.g + first * stride + hv;
  const float* beta = params.beta + first * stride + hv;
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

void HeadMatrices(const DeltaRuleParams& params, int64_t first, int64_t tokens, int64_t hv,
                  const ChannelChunkScratch& scratch) {
  for (int64_t i = 0; i < tokens; ++i) {
    scratch.ones[i] = 1.0f;
    scratch.beta[i] = HeadTokenAt(params, first + i, hv).beta;
  }
  for (int64_t begin = 0; begin < tokens; begin += kDecayBlockTokens) {
    const int64_t rows = std::min(kDecayBlockTokens, tokens - begin);
    LoadBlock(params, first + begin, rows, hv, scratch);
    BlockMatrices(scratch, begin / kDecayBlockTokens, rows);
  }
  DecayToEnd(scratch, tokens);
}

// A panel's state in the scratch memory, and its columns of the chunk's values and outputs.
struct PanelData {
  float* state;    // [K, panel]
  const float* v;  // [C, panel], rows v_row apart
  int64_t v_row;
  float* output;  // [C, panel], rows output_row apart
  int64_t output_row;
};

// Values of a panel -> U and outputs.
template <typename Scratch>
HWY_INLINE void PanelOutputs(const Scratch& scratch, const PanelData& panel, int64_t tokens, int64_t key_row,
                             int64_t key_dim, const float* decay, const float* beta, RowFetcher& ahead) {
  const PanelOperands operands{.q = scratch.q,
                               .k = scratch.k,
                               .key_row = key_row,
                               .key_dim = key_dim,
                               .a = scratch.a,
                               .p = scratch.p,
                               .decay = decay,
                               .beta = beta,
                               .state = panel.state,
                               .u = scratch.u,
                               .v = panel.v,
                               .v_row = panel.v_row,
                               .output = panel.output,
                               .output_row = panel.output_row,
                               .ahead = ahead};
  ForRowTiles(tokens, [&](auto tile, int64_t row) HWY_ATTR { PanelRows<decltype(tile)::value>(operands, row); });
}

// state = diag(decay) state + k_t u; row i's decay is decay[i * decay_step].
HWY_INLINE void AdvanceState(const float* decay, int64_t decay_step, int64_t tokens, int64_t key_dim, const float* k_t,
                             const float* u, float* state, RowFetcher& ahead) {
  const FloatTag d;
  const int64_t width = kTileVectors * static_cast<int64_t>(hn::Lanes(d));
  ForRowTiles(key_dim, [&](auto tile, int64_t row) HWY_ATTR {
    hn::Vec<FloatTag> acc[decltype(tile)::value][kTileVectors];
    LoadScaledTile(d, decay + row * decay_step, decay_step, state + row * width, width, acc);
    MultiplyAccumulate(d, tokens, k_t + row * kC, kC, 1, u, width, acc);
    StoreTile(d, acc, state + row * width, width);
    ahead.Fetch();
  });
}

// A whole chunk of one panel: values -> outputs, state -> state.
HWY_NOINLINE void Panel(const HeadChunk& chunk, const PanelData& panel, int64_t tokens, int64_t key_dim,
                        RowFetcher& ahead) {
  const ChunkScratch& scratch = chunk.scratch;
  const ChunkGates& gates = chunk.gates;
  PanelOutputs(scratch, panel, tokens, key_dim, key_dim, gates.decay, gates.beta, ahead);
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = kTileVectors * lanes;
  // S = e^{G_C} S + K^T (e^{G_C - G} U)
  for (int64_t i = 0; i < tokens; ++i) {
    const hn::Vec<FloatTag> factor = hn::Set(d, gates.to_end[i]);
    for (int64_t j = 0; j < width; j += lanes) {
      hn::StoreU(hn::Mul(factor, hn::LoadU(d, scratch.u + i * width + j)), d, scratch.decayed + i * width + j);
    }
  }
  AdvanceState(&gates.chunk_decay, /*decay_step=*/0, tokens, key_dim, scratch.k_t, scratch.decayed, panel.state, ahead);
}

HWY_NOINLINE void Panel(const ChannelChunkScratch& scratch, const PanelData& panel, int64_t tokens, int64_t key_dim,
                        RowFetcher& ahead) {
  PanelOutputs(scratch, panel, tokens, scratch.row, key_dim, scratch.ones, scratch.beta, ahead);
  AdvanceState(scratch.chunk_decay, /*decay_step=*/1, tokens, key_dim, scratch.k_t, scratch.u, panel.state, ahead);
}

// Loads and computes what the heads of a key head share in a chunk.
void LoadKeyHead(const DeltaRuleParams& params, int64_t first, int64_t tokens, int64_t h, const HeadChunk& chunk) {
  const ChunkScratch& scratch = chunk.scratch;
  const int64_t key_dim = params.pool.layout.dims().key_dim;
  const size_t row_bytes = static_cast<size_t>(key_dim) * sizeof(float);
  for (int64_t i = 0; i < tokens; ++i) {
    std::memcpy(scratch.q + i * key_dim, params.q + (first + i) * params.q_stride + h * key_dim, row_bytes);
    std::memcpy(scratch.k + i * key_dim, params.k + (first + i) * params.k_stride + h * key_dim, row_bytes);
  }
  TransposeRows(scratch.k, key_dim, tokens, key_dim, scratch.k_t, kC);
  // Products may read the padding of a short chunk. Their results are not used.
  for (int64_t c = 0; tokens < kC && c < key_dim; ++c) {
    std::fill(scratch.k_t + c * kC + tokens, scratch.k_t + (c + 1) * kC, 0.0f);
  }
  KeyProducts(scratch, tokens, key_dim);
}
void LoadKeyHead(const DeltaRuleParams&, int64_t, int64_t, int64_t, const ChannelChunkScratch&) {}

// Computes one chunk of a panel of `columns` columns.
template <typename Chunk>
void PanelChunk(const Chunk& chunk, PanelData panel, int64_t columns, int64_t tokens, int64_t key_dim,
                RowFetcher& ahead) {
  const int64_t panel_columns = kTileVectors * static_cast<int64_t>(hn::Lanes(FloatTag()));
  if (HWY_LIKELY(columns == panel_columns)) return Panel(chunk, panel, tokens, key_dim, ahead);
  float* const values = ScratchOf(chunk).values;
  LoadPanel(panel.v, panel.v_row, tokens, columns, values);
  Panel(chunk, {panel.state, values, panel_columns, values, panel_columns}, tokens, key_dim, ahead);
  StorePanel(values, tokens, columns, panel.output, panel.output_row);
}

// The task's states stay in `states`, panel by panel, from the first chunk to the last. They go through the base after
// every chunk where a base of bfloat16 is to be rounded.
static_assert(kC == kBaseRoundTokens);
template <typename Base, typename Chunk>
void RunTask(const DeltaRuleParams& params, int32_t sequence, int64_t first_head, const Partition& partition,
             int64_t first_column, Chunk& chunk, float* states) {
  const LayerDims& dims = params.pool.layout.dims();
  const int64_t key_dim = dims.key_dim;
  const int64_t value_dim = dims.value_dim;
  const int64_t panel_columns = kTileVectors * static_cast<int64_t>(hn::Lanes(FloatTag()));
  const int64_t last_column = std::min<int64_t>(value_dim, first_column + partition.panels * panel_columns);
  // Calls function(column, columns, state, base) for the panels of a head.
  const auto for_each_panel = [&](int64_t hv, auto&& function) HWY_ATTR {
    float* state = states + (hv - first_head) * partition.panels * key_dim * panel_columns;
    for (int64_t column = first_column; column < last_column; column += panel_columns) {
      function(column, std::min(panel_columns, value_dim - column), state,
               params.pool.base<Base>(params.batch.slots[sequence], hv) + column);
      state += key_dim * panel_columns;
    }
  };
  const auto load = [&](int64_t, int64_t columns, float* state, const Base* base)
                        HWY_ATTR { LoadPanel(base, value_dim, key_dim, columns, state); };
  const auto store = [&](int64_t, int64_t columns, const float* state, Base* base)
                         HWY_ATTR { StorePanel(state, key_dim, columns, base, value_dim); };
  const int64_t last_head = first_head + partition.heads;
  for (int64_t hv = first_head; hv < last_head; ++hv) for_each_panel(hv, load);
  const int64_t end = params.batch.cu_seqlens[sequence + 1];
  for (int64_t token = params.batch.cu_seqlens[sequence]; token < end; token += kC) {
    const int64_t tokens = std::min(kC, end - token);
    RowFetcher ahead = NextChunk(params, token + kC, end, first_head, partition.heads, first_column, last_column);
    LoadKeyHead(params, token, tokens, first_head / dims.group(), chunk);
    for (int64_t hv = first_head; hv < last_head; ++hv) {
      HeadMatrices(params, token, tokens, hv, chunk);
      const float* const v = params.v + token * params.v_stride + hv * value_dim;
      float* const output = params.output + token * dims.value_features() + hv * value_dim;
      for_each_panel(hv, [&](int64_t column, int64_t columns, float* state, Base*) HWY_ATTR {
        PanelChunk(chunk, {state, v + column, params.v_stride, output + column, dims.value_features()}, columns, tokens,
                   key_dim, ahead);
      });
      if constexpr (!std::is_same_v<Base, float>) {
        for_each_panel(hv, store);
        for_each_panel(hv, load);
      }
    }
  }
  for (int64_t hv = first_head; hv < last_head; ++hv) for_each_panel(hv, store);
}

// A task has at most the value heads that share a key head of `shared`.
template <typename Chunk>
void ChunkTasksOf(const DeltaRuleParams& params, const LayerDims& shared, ThreadPool& pool,
                  const WorkerScratch& scratch) {
  const LayerDims& dims = params.pool.layout.dims();
  const int64_t panel_columns = kTileVectors * static_cast<int64_t>(hn::Lanes(FloatTag()));
  const int64_t panels = (dims.value_dim + panel_columns - 1) / panel_columns;
  const Partition partition = ChoosePartition(shared, params.batch.sequences, panels, pool.threads());
  const int64_t cuts = (panels + partition.panels - 1) / partition.panels;
  const int64_t head_groups = dims.value_heads / partition.heads;  // NOLINT(clang-analyzer-core.DivideZero)
  pool.ParallelFor(params.batch.sequences * head_groups * cuts, [&](int64_t index, int worker) {
    const int32_t sequence = static_cast<int32_t>(index / (head_groups * cuts));
    if (params.batch.slots[sequence] < 0) return;
    const int64_t first_head = index / cuts % head_groups * partition.heads;
    Chunk chunk(scratch.piece(worker), dims.key_dim);
    float* const states = scratch.piece(worker) + Chunk::Floats(dims.key_dim);
    WithBaseElement(params.pool.layout, [&](auto element) {
      RunTask<decltype(element)>(params, sequence, first_head, partition,
                                 index % cuts * partition.panels * panel_columns, chunk, states);
    });
  });
}

void ChunkTasks(const DeltaRuleParams& params, ThreadPool& pool, const WorkerScratch& scratch) {
  const LayerDims shared = SharedDims(params.pool.layout.dims());
  return params.pool.layout.dims().decays_by_channel()
             ? ChunkTasksOf<ChannelChunkScratch>(params, shared, pool, scratch)
             : ChunkTasksOf<HeadChunk>(params, shared, pool, scratch);
}

}  // namespace
}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {
HWY_EXPORT(ChunkTasks);

absl::Status DeltaRuleChunkCpu(const DeltaRuleParams& params, ThreadPool& pool) {
  if (ChunkTakesScan(params)) return DeltaRuleScanCpu(params, pool);
  if (params.batch.tokens() == 0) return absl::OkStatus();
  const LayerDims& dims = params.pool.layout.dims();
  ZeroPaddingRows(params.batch, dims.value_features(), params.output);
  const int64_t floats =
      TaskStateFloats(dims, params.batch.sequences, pool.threads()) +  // of a worker
      (dims.decays_by_channel() ? ChannelChunkScratch::Floats(dims.key_dim) : ChunkScratch::Floats(dims.key_dim));
  GDN_ASSIGN_OR_RETURN(const WorkerScratch scratch, WorkerScratch::Make(pool.threads(), floats));
  HWY_DYNAMIC_DISPATCH(ChunkTasks)(params, pool, scratch);
  return absl::OkStatus();
}

}  // namespace gdn
#endif  // HWY_ONCE
