// The state's walk over a span's chunks where each key channel has a decay (delta_rule_channel_gpu.hip):
//   X = V - (e^G K) S      U = T diag(beta) X      O = (e^G Q) S + P U      S <- diag(e^{G_C}) S + (e^{G_C-G} K)^T U
//
// Threads: as delta_rule_chunk_gpu.hip, whose parts these are. The decays are in what was prepared, so a chunk has
// three matrices of keys and queries that take turns in one buffer: e^G Q, e^G K, e^{G_C-G} K.
// Resources: as there. Bound by VALU.

#include "kernels/delta_rule_chunk/delta_rule_walk_gpu-inl.h"

namespace gdn::gpu {
namespace {

using walk::AddOuterProducts;
using walk::ChunkRows;
using walk::ForEachStage;
using walk::kC;
using walk::kStride;
using walk::MultiplyLower;
using walk::ReadState;
using walk::ReadValues;
using walk::RowMover;
using walk::SquareMover;
using walk::ValueRows;
using walk::WalkShared;
using walk::WriteValues;

template <int kWave, typename Shape, bool kExact, typename Base>
// NOLINTNEXTLINE(readability-function-size): its phases share registers.
__global__ __launch_bounds__(Shape::kThreads, walk::kLeastWaves<Shape>) void DeltaRuleChannelWalkKernel(ChunkArgs args,
                                                                                                        Span span) {
  constexpr int kElements = Shape::kElements;
  constexpr int kColumns = Shape::kColumns;
  constexpr int kBatches = Shape::kBatches;
  constexpr int kSlots = Shape::kSlots;
  WalkShared<Shape>& sh = SharedMemory<WalkShared<Shape>>();
  const DeltaRuleArgs& p = args.rule;
  const BlockTask task = TaskOf(p);
  const int sequence = span.sequence + task.sequence;
  const int64_t first = p.cu_seqlens[sequence];
  const int64_t begin = first + int64_t{span.chunk} * kC;
  const int64_t end = min(int64_t{p.cu_seqlens[sequence + 1]}, begin + int64_t{span.chunks} * kC);
  const int slot = p.slots[sequence];
  if (begin >= end) return;
  if (slot < 0) {
    ZeroOutput<Shape::kThreads>(p, task, Shape::kBlockColumns, begin, end);
    return;
  }
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kColumnLanes;
  const int group = thread / kColumnLanes;
  const int column = task.column_block * Shape::kBlockColumns + group * kColumns;
  const int my_local = group * kColumns + lane % kColumns;
  Base* base = HeadBase<Base>(p, slot, task.head);
  float s[kColumns][kElements];
  LoadState<kElements, kColumns, kExact>(base + int64_t{column} * p.key_dim, p.value_dim - column, lane, p.key_dim, s);

  const int64_t o_stride = int64_t{p.value_heads} * p.value_dim;
  const ValueRows<Shape, kExact> values{task.column_block * Shape::kBlockColumns, p.value_dim};
  const float* v_rows = p.v + begin * p.v_stride + int64_t{task.head} * p.value_dim;
  float* o_rows = p.output + (begin * p.value_heads + task.head) * p.value_dim;
  const float* prepared = args.workspace + (int64_t{task.sequence} * span.chunks * p.value_heads + task.head) *
                                               ChannelWorkspace::Floats(kSlots);
  const auto rows_at = [&](int64_t offset) { return ChunkRows{prepared + offset, kSlots, kC, kSlots}; };
  RowMover<Shape, true> mover;
  mover.Fetch(rows_at(ChannelWorkspace::QGrown(kSlots)), 0);
#pragma unroll 1
  for (int64_t start = begin; start < end; start += kC) {
    const int rows = static_cast<int>(min(int64_t{kC}, end - start));
    const ChunkRows q_grown = rows_at(ChannelWorkspace::QGrown(kSlots));
    const ChunkRows k_grown = rows_at(ChannelWorkspace::KGrown(kSlots));
    const ChunkRows k_tail = rows_at(ChannelWorkspace::KTail(kSlots));
    SquareMover<Shape> t_mover;
    SquareMover<Shape> p_mover;
    t_mover.Fetch(prepared + ChannelWorkspace::kT);
    if constexpr (!Shape::kStaged) p_mover.Fetch(prepared + ChannelWorkspace::kP);
    if (start > begin) SyncThreads();
    mover.Store(q_grown, 0, sh.rows);
    t_mover.Store(sh.squares, 0);
    if constexpr (!Shape::kStaged) p_mover.Store(sh.squares, Shape::kPAt);
    const auto read_state = [&](int stage) { ReadState<kWave, Shape>(sh.rows, stage, sh.values, lane, my_local, s); };
    ForEachStage(mover, q_grown, k_grown, sh.rows, read_state);
    float o[kBatches];
    ReadValues<Shape>(sh.values, lane, my_local, o);
    SyncThreads();
    mover.Store(k_grown, 0, sh.rows);
    ForEachStage(mover, k_grown, k_tail, sh.rows, read_state);
    float x[kBatches];
    values.Load(v_rows, p.v_stride, rows, x);
    {
      float read[kBatches];
      ReadValues<Shape>(sh.values, lane, my_local, read);
#pragma unroll
      for (int b = 0; b < kBatches; ++b) x[b] -= read[b];
    }
    SyncThreads();
    mover.Store(k_tail, 0, sh.rows);
    if constexpr (Shape::kStaged) p_mover.Fetch(prepared + ChannelWorkspace::kP);
    WriteValues<Shape>(sh.values, lane, my_local, x);
    WaveBarrier();
    float u[kBatches] = {};
    MultiplyLower<Shape>(sh.squares, 0, sh.values, lane, my_local, u);
    WaveBarrier();
    WriteValues<Shape>(sh.values, lane, my_local, u);
    if constexpr (Shape::kStaged) {
      SyncThreads();
      p_mover.Store(sh.squares, Shape::kPAt);
      SyncThreads();
    } else {
      WaveBarrier();
    }
    MultiplyLower<Shape>(sh.squares, Shape::kPAt, sh.values, lane, my_local, o);
    // The outputs go through LDS, as in delta_rule_chunk_gpu.hip.
    WaveBarrier();
    WriteValues<Shape>(sh.values, lane, my_local, o);
    WaveBarrier();
    ReadValues<Shape>(sh.values, lane, my_local, o);
    values.Store(o_rows, o_stride, rows, o);
    WaveBarrier();
    WriteValues<Shape>(sh.values, lane, my_local, u);
    float decay[kElements];
    LoadFragment<kElements, true>(prepared + ChannelWorkspace::kDecay, lane, kSlots, decay);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) s[c][i] *= decay[i];
    }

    v_rows += kC * p.v_stride;
    o_rows += kC * o_stride;
    prepared += int64_t{p.value_heads} * ChannelWorkspace::Floats(kSlots);
    ChunkRows next = rows_at(ChannelWorkspace::QGrown(kSlots));
    if (start + kC >= end) next.rows = 0;  // nothing is fetched
    ForEachStage(mover, k_tail, next, sh.rows,
                 [&](int stage) { AddOuterProducts<Shape>(sh.rows, stage, sh.values, group, lane, s); });
    if constexpr (kRounds<Base>) {
      if ((start - first + kC) % kBaseRoundTokens == 0) RoundState<kElements, kColumns>(s);
    }
  }
  // Not the address that was loaded from, lest it take registers from the loop.
  StoreState<kElements, kColumns, kExact>(At(base, column * static_cast<uint32_t>(p.key_dim)), p.value_dim - column,
                                          lane, p.key_dim, s);
}

template <int kWave, typename Shape>
absl::Status LaunchWalk(ChunkArgs args, const StateLayout& layout, const Span& span, bool exact, const Stream& stream) {
  args.rule.column_blocks = static_cast<int32_t>(CeilDivide(args.rule.value_dim, Shape::kBlockColumns));
  const Grid grid{int64_t{span.sequences} * args.rule.value_heads * args.rule.column_blocks};
  return WithBaseElement(layout, [&](auto element) {
    using Base = decltype(element);
    const auto kernel = exact ? DeltaRuleChannelWalkKernel<kWave, Shape, true, Base>
                              : DeltaRuleChannelWalkKernel<kWave, Shape, false, Base>;
    return Launch("delta_rule_chunk", kernel, grid, Shape::kThreads, stream, args, span);
  });
}

}  // namespace

absl::Status WalkChannelChunks(const ChunkArgs& args, const StateLayout& layout, const Span& span, bool exact,
                               const Stream& stream) {
  return WithWaveWidth(stream, "delta_rule_chunk", [&](auto wave) {
    return walk::WithShape<wave()>(layout.dims(), span.sequences, stream, [&](auto shape) {
      return LaunchWalk<wave(), decltype(shape)>(args, layout, span, exact, stream);
    });
  });
}

}  // namespace gdn::gpu
