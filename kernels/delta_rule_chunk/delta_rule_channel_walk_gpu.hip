// The state's walk over a span's chunks where each key channel has a decay (delta_rule_channel_gpu.hip):
//   X = V - (e^G K) S      U = T diag(beta) X      O = (e^G Q) S + P U      S <- diag(e^{G_C}) S + (e^{G_C-G} K)^T U
//
// Threads: as delta_rule_chunk_gpu.hip, whose parts these are. The decays are in what was prepared, so a chunk has
// three matrices of keys and queries that take turns in one buffer: e^G Q, e^G K, e^{G_C-G} K.
// Resources: kColumns = 2, K = 128: 128 VGPRs or fewer, 30 KB of LDS: two blocks a CU. Bound by VALU.

#include "kernels/delta_rule_chunk/delta_rule_walk_gpu-inl.h"

namespace gdn::gpu {
namespace {

using walk::AddOuterProducts;
using walk::kC;
using walk::kStride;
using walk::MultiplyLower;
using walk::ReadState;
using walk::RowMover;
using walk::WalkShared;
using walk::WriteValues;

template <int kWave, int kElements, int kColumns, bool kExact, typename Base>
// NOLINTNEXTLINE(readability-function-size): its phases share registers.
__global__ __launch_bounds__(kDeltaRuleThreads, kElements <= 8 ? 2 : 1) void DeltaRuleChannelWalkKernel(ChunkArgs args,
                                                                                                        Span span) {
  constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  constexpr int kRows = 16 / kColumns;
  constexpr int kBatches = kC / kRows;
  constexpr int kSlots = kColumnLanes * kElements;
  using ChunkShared = WalkShared<kElements, kColumns>;
  ChunkShared& sh = SharedMemory<ChunkShared>();
  const DeltaRuleArgs& p = args.rule;
  const BlockTask task = TaskOf(p);
  const int sequence = span.sequence + task.sequence;
  const int64_t first = p.cu_seqlens[sequence];
  const int64_t begin = first + int64_t{span.chunk} * kC;
  const int64_t end = min(int64_t{p.cu_seqlens[sequence + 1]}, begin + int64_t{span.chunks} * kC);
  const int slot = p.slots[sequence];
  if (begin >= end) return;
  if (slot < 0) {
    ZeroOutput(p, task, kBlockColumns, begin, end);
    return;
  }
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kColumnLanes;
  const int group = thread / kColumnLanes;
  const int column = task.column_block * kBlockColumns + group * kColumns;
  const int my_local = group * kColumns + lane % kColumns;
  const int my_column = task.column_block * kBlockColumns + my_local;
  const bool mine = kExact || my_column < p.value_dim;
  Base* base = HeadBase<Base>(p, slot, task.head);
  float s[kColumns][kElements];
  LoadState<kElements, kColumns, kExact>(base + int64_t{column} * p.key_dim, p.value_dim - column, lane, p.key_dim, s);

  const int my_row = lane / kColumns;
  const int64_t o_stride = int64_t{p.value_heads} * p.value_dim;
  const uint32_t v_offset = my_row * static_cast<uint32_t>(p.v_stride) + my_column;
  const uint32_t o_offset = my_row * static_cast<uint32_t>(o_stride) + my_column;
  const float* v_rows = p.v + begin * p.v_stride + int64_t{task.head} * p.value_dim;
  float* o_rows = p.output + (begin * p.value_heads + task.head) * p.value_dim;
  const float* prepared = args.workspace + (int64_t{task.sequence} * span.chunks * p.value_heads + task.head) *
                                               ChannelWorkspace::Floats(kSlots);
  RowMover<kElements, true> mover;
  mover.Fetch(prepared + ChannelWorkspace::QGrown(kSlots), kSlots, kC);
#pragma unroll 1
  for (int64_t start = begin; start < end; start += kC) {
    const int rows = static_cast<int>(min(int64_t{kC}, end - start));
    const Vec4 t4 = Load4(At(prepared + ChannelWorkspace::kT, threadIdx.x * 4));
    const Vec4 p4 = Load4(At(prepared + ChannelWorkspace::kP, threadIdx.x * 4));
    if (start > begin) SyncThreads();
    mover.Store(prepared, kSlots, kC, kSlots, sh.rows);
    sh.t.Store4(thread / (kC / 4) * kStride + thread % (kC / 4) * 4, t4);
    sh.p.Store4(thread / (kC / 4) * kStride + thread % (kC / 4) * 4, p4);
    SyncThreads();
    mover.Fetch(prepared + ChannelWorkspace::KGrown(kSlots), kSlots, kC);
    float o[kBatches];
    ReadState<kWave, kElements, kColumns>(sh.rows, sh.values, lane, my_local, s, o);
    SyncThreads();
    mover.Store(prepared, kSlots, kC, kSlots, sh.rows);
    SyncThreads();
    mover.Fetch(prepared + ChannelWorkspace::KTail(kSlots), kSlots, kC);
    float x[kBatches];
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
      const int row = b * kRows + my_row;
      x[b] = 0.0f;
      if (mine && row < rows) x[b] = *At(v_rows + b * kRows * p.v_stride, v_offset);
    }
    {
      float read[kBatches];
      ReadState<kWave, kElements, kColumns>(sh.rows, sh.values, lane, my_local, s, read);
#pragma unroll
      for (int b = 0; b < kBatches; ++b) x[b] -= read[b];
    }
    SyncThreads();
    mover.Store(prepared, kSlots, kC, kSlots, sh.rows);
    WriteValues<kColumns>(sh.values, lane, my_local, x);
    WaveBarrier();
    float u[kBatches] = {};
    MultiplyLower<kColumns>(sh.t, sh.values, lane, my_local, u);
    WaveBarrier();
    WriteValues<kColumns>(sh.values, lane, my_local, u);
    WaveBarrier();
    MultiplyLower<kColumns>(sh.p, sh.values, lane, my_local, o);
    // By way of LDS, as in delta_rule_chunk_gpu.hip.
    WaveBarrier();
    WriteValues<kColumns>(sh.values, lane, my_local, o);
    WaveBarrier();
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
      const int row = b * kRows + my_row;
      const float value = sh.values[my_local * kStride + row];
      if (mine && row < rows) *At(o_rows + b * kRows * o_stride, o_offset) = value;
    }
    WaveBarrier();
    WriteValues<kColumns>(sh.values, lane, my_local, u);
    float decay[kElements];
    LoadFragment<kElements, true>(prepared + ChannelWorkspace::kDecay, lane, kSlots, decay);
    SyncThreads();  // e^{G_C-G} K is there

    v_rows += kC * p.v_stride;
    o_rows += kC * o_stride;
    prepared += int64_t{p.value_heads} * ChannelWorkspace::Floats(kSlots);
    if (start + kC < end) mover.Fetch(prepared + ChannelWorkspace::QGrown(kSlots), kSlots, kC);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) s[c][i] *= decay[i];
    }
    AddOuterProducts<kElements, kColumns>(sh.rows, sh.values, group, lane, s);
    if constexpr (kRounds<Base>) {
      if ((start - first + kC) % kBaseRoundTokens == 0) RoundState<kElements, kColumns>(s);
    }
  }
  // Not the address that was loaded from, lest it take registers from the loop.
  StoreState<kElements, kColumns, kExact>(At(base, column * static_cast<uint32_t>(p.key_dim)), p.value_dim - column,
                                          lane, p.key_dim, s);
}

template <int kWave, int kElements, int kColumns>
absl::Status LaunchWalk(ChunkArgs args, const StateLayout& layout, const Span& span, bool exact, const Stream& stream) {
  constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  args.rule.column_blocks = static_cast<int32_t>(CeilDivide(args.rule.value_dim, kBlockColumns));
  const Grid grid{int64_t{span.sequences} * args.rule.value_heads * args.rule.column_blocks};
  return WithBaseElement(layout, [&](auto element) {
    using Base = decltype(element);
    const auto kernel = exact ? DeltaRuleChannelWalkKernel<kWave, kElements, kColumns, true, Base>
                              : DeltaRuleChannelWalkKernel<kWave, kElements, kColumns, false, Base>;
    return Launch("delta_rule_chunk", kernel, grid, kDeltaRuleThreads, stream, args, span);
  });
}

}  // namespace

absl::Status WalkChannelChunks(const ChunkArgs& args, const StateLayout& layout, const Span& span, bool exact,
                               const Stream& stream) {
  const LayerDims& dims = layout.dims();
  const bool wide = walk::TwoColumns(dims, span.sequences, stream);
  return WithWaveWidth(stream, "delta_rule_chunk", [&](auto wave) {
    return WithElements<16>(KeySlots(dims.key_dim), [&](auto elements) {
      if constexpr (elements() >= 8) {
        if (wide) return LaunchWalk<wave(), elements(), 2>(args, layout, span, exact, stream);
      }
      return LaunchWalk<wave(), elements(), 1>(args, layout, span, exact, stream);
    });
  });
}

}  // namespace gdn::gpu
