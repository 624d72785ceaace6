// A task owns a run of value columns of one value head, chunk after chunk. Once a chunk it makes the head's A and P,
// its keys and queries decayed from the chunk's start and its keys decayed to the chunk's end (channel_products-inl.h);
// then, once a panel, U, O and the new state
//   S <- diag(e^{G_C}) S + (e^{G_C - G} k)^T U
// as delta_rule_chunk_cpu.cc has them. The last panel is padded with zeros.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/delta_rule_chunk/channel_chunk_cpu.cc"
#include "hwy/foreach_target.h"
// foreach_target.h must come first.
#include <algorithm>

#include "base/status_macros.h"
#include "hwy/highway.h"
#include "kernels/common/worker_scratch.h"
#include "kernels/delta_rule_chunk/channel_chunk_cpu.h"
#include "kernels/delta_rule_chunk/channel_chunk_scratch.h"
#include "kernels/delta_rule_chunk/channel_products-inl.h"
#include "kernels/delta_rule_chunk/chunk_panel-inl.h"
#include "kernels/delta_rule_chunk/chunk_partition.h"
#include "kernels/small_gemm/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kC = kChunkTokens;

// A whole chunk of one panel: values -> outputs, state -> state.
HWY_NOINLINE void Panel(const ChannelChunkScratch& scratch, int64_t tokens, int64_t key_dim, RowFetcher& ahead) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = kTileVectors * lanes;
  const PanelOperands operands{.q = scratch.q,
                               .k = scratch.k,
                               .key_row = scratch.row,
                               .key_dim = key_dim,
                               .a = scratch.a,
                               .p = scratch.p,
                               .decay = scratch.ones,
                               .beta = scratch.beta,
                               .state = scratch.state,
                               .u = scratch.u,
                               .values = scratch.values,
                               .ahead = ahead};
  ForRowTiles(tokens, [&](auto tile, int64_t row) HWY_ATTR { PanelRows<decltype(tile)::value>(operands, row); });
  ForRowTiles(key_dim, [&](auto tile, int64_t row) HWY_ATTR {
    constexpr int kRows = decltype(tile)::value;
    float* state = scratch.state + row * width;
    hn::Vec<FloatTag> acc[kRows][kTileVectors];
    HWY_UNROLL(16)
    for (int r = 0; r < kRows; ++r) {
      const hn::Vec<FloatTag> decay = hn::Set(d, scratch.chunk_decay[row + r]);
      HWY_UNROLL(16)
      for (int n = 0; n < kTileVectors; ++n) acc[r][n] = hn::Mul(decay, hn::LoadU(d, state + r * width + n * lanes));
    }
    MultiplyAccumulate(d, tokens, scratch.k_t + row * kC, kC, 1, scratch.u, width, acc);
    StoreTile(d, acc, state, width);
    ahead.Fetch();
  });
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

// The state goes through the base after every chunk, which is where a base of bfloat16 is to be rounded.
static_assert(kC == kBaseRoundTokens);
template <typename Base>
void RunTask(const DeltaRuleParams& params, int32_t sequence, int64_t hv, int64_t first_column, int64_t last_column,
             const ChannelChunkScratch& scratch) {
  const LayerDims& dims = params.pool.layout.dims();
  const int64_t value_dim = dims.value_dim;
  const int64_t panel_columns = kTileVectors * static_cast<int64_t>(hn::Lanes(FloatTag()));
  const int64_t end = params.batch.cu_seqlens[sequence + 1];
  for (int64_t token = params.batch.cu_seqlens[sequence]; token < end; token += kC) {
    const int64_t tokens = std::min(kC, end - token);
    RowFetcher ahead = NextChunk(params, token + kC, end, hv, /*heads=*/1, first_column, last_column);
    HeadMatrices(params, token, tokens, hv, scratch);
    for (int64_t column = first_column; column < last_column; column += panel_columns) {
      const int64_t columns = std::min(panel_columns, value_dim - column);
      const int64_t value_offset = hv * value_dim + column;
      Base* state = params.pool.base<Base>(params.batch.slots[sequence], hv) + column;
      float* output = params.output + token * dims.value_features() + value_offset;
      const float* v = params.v + token * params.v_stride + value_offset;
      LoadPanel(state, value_dim, dims.key_dim, columns, scratch.state);
      LoadPanel(v, params.v_stride, tokens, columns, scratch.values);
      Panel(scratch, tokens, dims.key_dim, ahead);
      StorePanel(scratch.values, tokens, columns, output, dims.value_features());
      StorePanel(scratch.state, dims.key_dim, columns, state, value_dim);
    }
  }
}

void ChannelChunkTasks(const DeltaRuleParams& params, ThreadPool& pool, const WorkerScratch& scratch) {
  const LayerDims& dims = params.pool.layout.dims();
  const int64_t panel_columns = kTileVectors * static_cast<int64_t>(hn::Lanes(FloatTag()));
  const int64_t panels = (dims.value_dim + panel_columns - 1) / panel_columns;
  // Value heads have nothing in common here: a task has one.
  LayerDims single = dims;
  single.key_heads = dims.value_heads;
  const Partition partition = ChoosePartition(single, params.batch.sequences, panels, pool.threads());
  const int64_t cuts = (panels + partition.panels - 1) / partition.panels;
  pool.ParallelFor(params.batch.sequences * dims.value_heads * cuts, [&](int64_t index, int worker) {
    const int32_t sequence = static_cast<int32_t>(index / (dims.value_heads * cuts));
    if (params.batch.slots[sequence] < 0) return;
    const int64_t first = index % cuts * partition.panels * panel_columns;
    const int64_t last = std::min<int64_t>(dims.value_dim, first + partition.panels * panel_columns);
    WithBaseElement(params.pool.layout, [&](auto element) {
      RunTask<decltype(element)>(params, sequence, index / cuts % dims.value_heads, first, last,
                                 ChannelChunkScratch(scratch.piece(worker), dims.key_dim));
    });
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace gdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {
HWY_EXPORT(ChannelChunkTasks);

absl::Status ChannelChunkCpu(const DeltaRuleParams& params, ThreadPool& pool) {
  GDN_ASSIGN_OR_RETURN(
      const WorkerScratch scratch,
      WorkerScratch::Make(pool.threads(), ChannelChunkScratch::Floats(params.pool.layout.dims().key_dim)));
  HWY_DYNAMIC_DISPATCH(ChannelChunkTasks)(params, pool, scratch);
  return absl::OkStatus();
}

}  // namespace gdn
#endif  // HWY_ONCE
