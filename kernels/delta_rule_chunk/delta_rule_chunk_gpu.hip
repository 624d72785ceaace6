// The state's walk over the chunks, on the GPU. With T, P and the decays from delta_rule_chunk_prepare_gpu.hip:
//   X = V - e^G K S      U = T diag(beta) X      O = e^G Q S + P U      S <- e^{G_C} S + K^T (e^{G_C-G} U)
//
// Threads: 16 lanes hold kColumns columns of S in registers over all chunks, as in the scan; a block is 8 or 16 such
// groups of one (sequence, value head), in a shape of delta_rule_walk_gpu-inl.h. Products with S are partial sums of 16
// values a lane, which a halving reduction leaves one in each lane: row b * kRows + lane / kColumns, column lane %
// kColumns, for kBatches values b of a chunk. X and U stay among a group's own lanes, so only the chunk's K and Q (one
// after the other in one buffer) and T, P need block barriers.
// Waves of 32 take this path for K above 128 alone; the others' is delta_rule_matrix_gpu.hip or, without matrix units,
// delta_rule_split_gpu.hip. Decays by channel have kernels of their own (delta_rule_channel_gpu.hip).
// Resources, kColumns = 2 and K = 128: 16 groups have 128 VGPRs or fewer and 30 KB of LDS, two blocks a CU; 8 groups 84
// and 11 KB, five. So 32 heads of 128 columns take one round of 60 CUs in blocks of 8 groups, else two. Bound by VALU.

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/common/contract.h"
#include "kernels/delta_rule_chunk/chunk_workspace_gpu-inl.h"
#include "kernels/delta_rule_chunk/delta_rule_walk_gpu-inl.h"
#include "kernels/delta_rule_scan/delta_rule_scan.h"

namespace gdn {
namespace gpu {
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

constexpr int kMostElements = 16;                  // K up to 256
constexpr int64_t kMostStride = int64_t{1} << 24;  // so that offsets inside a chunk have 32 bits, in bytes

template <int kWave, typename Shape, bool kExact, typename Base>
// NOLINTNEXTLINE(readability-function-size): its phases share registers.
__global__ __launch_bounds__(Shape::kThreads, walk::kLeastWaves<Shape>) void DeltaRuleChunkKernel(ChunkArgs args) {
  constexpr int kElements = Shape::kElements;
  constexpr int kColumns = Shape::kColumns;
  constexpr int kRows = Shape::kRows;
  constexpr int kBatches = Shape::kBatches;
  WalkShared<Shape>& sh = SharedMemory<WalkShared<Shape>>();
  const DeltaRuleArgs& p = args.rule;
  const BlockTask task = TaskOf(p);
  const int64_t first = p.cu_seqlens[task.sequence];
  const int64_t end = p.cu_seqlens[task.sequence + 1];
  const int slot = p.slots[task.sequence];
  if (first == end) return;
  if (slot < 0) {
    ZeroOutput<Shape::kThreads>(p, task, Shape::kBlockColumns, first, end);
    return;
  }
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kColumnLanes;
  const int group = thread / kColumnLanes;
  const int column = task.column_block * Shape::kBlockColumns + group * kColumns;
  const int my_local = group * kColumns + lane % kColumns;
  const int64_t key_offset = int64_t{task.key_head} * p.key_dim;
  Base* base = HeadBase<Base>(p, slot, task.head);
  float s[kColumns][kElements];
  LoadState<kElements, kColumns, kExact>(base + int64_t{column} * p.key_dim, p.value_dim - column, lane, p.key_dim, s);

  const int my_row = lane / kColumns;
  const int64_t o_stride = int64_t{p.value_heads} * p.value_dim;
  const ValueRows<Shape, kExact> values{task.column_block * Shape::kBlockColumns, p.value_dim};
  const float* v_rows = p.v + first * p.v_stride + int64_t{task.head} * p.value_dim;
  float* o_rows = p.output + (first * p.value_heads + task.head) * p.value_dim;
  ChunkRows q{p.q + first * p.q_stride + key_offset, p.q_stride, static_cast<int>(min(int64_t{kC}, end - first)),
              p.key_dim};
  ChunkRows k{p.k + first * p.k_stride + key_offset, p.k_stride, q.rows, p.key_dim};
  const float* prepared =
      args.workspace + ChunkBlock(first, task.sequence, 0, p.value_heads, task.head) * ChunkWorkspace::kFloats;
  RowMover<Shape, kExact> mover;
  mover.Fetch(q, 0);
#pragma unroll 1
  for (int64_t start = first; start < end; start += kC) {
    const int rows = k.rows;
    SquareMover<Shape> t_mover;
    SquareMover<Shape> p_mover;
    t_mover.Fetch(prepared + ChunkWorkspace::kT);
    if constexpr (!Shape::kStaged) p_mover.Fetch(prepared + ChunkWorkspace::kP);
    const float decays = thread < 2 * kC ? *At(prepared + ChunkWorkspace::kGrown, threadIdx.x) : 0.0f;
    if (start > first) SyncThreads();
    mover.Store(q, 0, sh.rows);
    t_mover.Store(sh.squares, 0);
    if constexpr (!Shape::kStaged) p_mover.Store(sh.squares, Shape::kPAt);
    if (thread < 2 * kC) sh.decays[thread] = decays;
    const auto read_state = [&](int stage) { ReadState<kWave, Shape>(sh.rows, stage, sh.values, lane, my_local, s); };
    ForEachStage(mover, q, k, sh.rows, read_state);
    float o[kBatches];
    ReadValues<Shape>(sh.values, lane, my_local, o);
    SyncThreads();
    mover.Store(k, 0, sh.rows);
    ForEachStage(mover, k, Shape::kStaged ? k : ChunkRows{}, sh.rows, read_state);
    if constexpr (Shape::kStaged) {
      SyncThreads();
      mover.Store(k, 0, sh.rows);  // again, for the update of S
      p_mover.Fetch(prepared + ChunkWorkspace::kP);
    }
    float x[kBatches];
    values.Load(v_rows, p.v_stride, rows, x);
    {
      float read[kBatches];
      ReadValues<Shape>(sh.values, lane, my_local, read);
#pragma unroll
      for (int b = 0; b < kBatches; ++b) {
        const float grown = sh.decays[b * kRows + my_row];
        x[b] = fmaf(-grown, read[b], x[b]);
        o[b] *= grown;
      }
    }
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
    // The outputs go through LDS. Without that the compiler moves the product behind the stores' guards, and keeps all
    // that it has read in registers.
    WaveBarrier();
    WriteValues<Shape>(sh.values, lane, my_local, o);
    WaveBarrier();
    ReadValues<Shape>(sh.values, lane, my_local, o);
    values.Store(o_rows, o_stride, rows, o);
#pragma unroll
    for (int b = 0; b < kBatches; ++b) u[b] *= sh.decays[kC + b * kRows + my_row];
    WaveBarrier();
    WriteValues<Shape>(sh.values, lane, my_local, u);
    WaveBarrier();

    q.from += kC * q.stride;
    q.rows = static_cast<int>(min(int64_t{kC}, end - start - kC));  // of the next chunk, if there is one
    v_rows += kC * p.v_stride;
    o_rows += kC * o_stride;
    prepared += int64_t{p.value_heads} * ChunkWorkspace::kFloats;
    const float decay = sh.decays[kC - 1];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) s[c][i] *= decay;
    }
    const auto add = [&](int stage) { AddOuterProducts<Shape>(sh.rows, stage, sh.values, group, lane, s); };
    if constexpr (Shape::kStaged) {
      ForEachStage(mover, k, q, sh.rows, add);
    } else {
      mover.Fetch(q, 0);
      add(0);  // all of K is in LDS yet
    }
    k.from += kC * k.stride;
    k.rows = q.rows;
    if constexpr (kRounds<Base>) {
      if ((start - first + kC) % kBaseRoundTokens == 0) RoundState<kElements, kColumns>(s);
    }
  }
  // Not the address that was loaded from, lest it take registers from the loop.
  StoreState<kElements, kColumns, kExact>(At(base, column * static_cast<uint32_t>(p.key_dim)), p.value_dim - column,
                                          lane, p.key_dim, s);
}

template <int kWave, typename Shape>
absl::Status LaunchChunk(const DeltaRuleParams& params, const DeviceBatch& batch, float* workspace,
                         const Stream& stream) {
  const ChunkArgs args{MakeDeltaRuleArgs(params, batch, Shape::kBlockColumns), workspace,
                       static_cast<int32_t>(CeilDivide(batch.max_length, kC))};
  GDN_RETURN_IF_ERROR(PrepareChunks(args, batch, stream));
  const Grid grid{int64_t{batch.sequences} * args.rule.value_heads * args.rule.column_blocks};
  return WithBaseElement(params.pool.layout, [&](auto element) {
    using Base = decltype(element);
    const auto kernel = ExactRule(params, Shape::kElements, Shape::kBlockColumns)
                            ? DeltaRuleChunkKernel<kWave, Shape, true, Base>
                            : DeltaRuleChunkKernel<kWave, Shape, false, Base>;
    return Launch("delta_rule_chunk", kernel, grid, Shape::kThreads, stream, args);
  });
}

int64_t PreparedFloats(const DeltaRuleParams& params) {
  return ChunkBlock(params.batch.tokens(), params.batch.sequences, 0, params.pool.layout.dims().value_heads, 0) *
         ChunkWorkspace::kFloats;
}

}  // namespace
}  // namespace gpu

int64_t GpuWorkspaceFloats(const DeltaRuleParams& params, const gpu::Stream& stream) {
  if (params.batch.sequences == 0 || ChunkTakesScan(params)) return 0;
  const LayerDims& dims = params.pool.layout.dims();
  if (dims.decays_by_channel()) return gpu::ChannelChunkWorkspaceFloats(params);
  int64_t floats = gpu::PreparedFloats(params);
  if constexpr (gpu::HasWavesOf32(gpu::WaveWidths())) {
    if (gpu::TakesMatrixUnits(dims, stream)) return gpu::MatrixWorkspaceFloats(params);
    if (dims.key_dim <= gpu::kSplitMostKeys) {
      floats += gpu::SplitWorkspaceFloats(params.pool.layout, params.batch.sequences, params.batch.max_length());
    }
  }
  return floats;
}

absl::Status DeltaRuleChunkGpu(const DeltaRuleParams& params, const gpu::DeviceBatch& batch, float* workspace,
                               const gpu::Stream& stream) {
  const LayerDims& dims = params.pool.layout.dims();
  if (ChunkTakesScan(params) || dims.key_dim > gpu::kColumnLanes * gpu::kMostElements) {
    return DeltaRuleScanGpu(params, batch, stream);
  }
  if (batch.sequences == 0 || batch.tokens == 0) return absl::OkStatus();
  if (std::max({params.q_stride, params.k_stride, params.v_stride, dims.value_features()}) > gpu::kMostStride) {
    return DeltaRuleScanGpu(params, batch, stream);
  }
  GDN_RETURN_IF_ERROR(RequirePointer("DeltaRuleChunk", "workspace", workspace));
  if (dims.decays_by_channel()) return gpu::DeltaRuleChannelChunkGpu(params, batch, workspace, stream);
  if constexpr (gpu::HasWavesOf32(gpu::WaveWidths())) {
    if (gpu::TakesMatrixUnits(dims, stream)) return gpu::DeltaRuleMatrixGpu(params, batch, workspace, stream);
    if (stream.wave_width == 32 && dims.key_dim <= gpu::kSplitMostKeys) {
      return gpu::DeltaRuleSplitGpu(params, batch, workspace, workspace + gpu::PreparedFloats(params), stream);
    }
  }
  return gpu::WithWaveWidth(stream, "delta_rule_chunk", [&](auto wave) {
    return gpu::walk::WithShape<wave()>(dims, batch.sequences, stream, [&](auto shape) {
      return gpu::LaunchChunk<wave(), decltype(shape)>(params, batch, workspace, stream);
    });
  });
}

}  // namespace gdn
