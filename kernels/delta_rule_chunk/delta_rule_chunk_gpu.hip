// The state's walk over the chunks, on the GPU. With T, P and the decays from delta_rule_chunk_prepare_gpu.hip:
//   X = V - e^G K S      U = T diag(beta) X      O = e^G Q S + P U      S <- e^{G_C} S + K^T (e^{G_C-G} U)
//
// Threads: 16 lanes hold kColumns columns of S in registers over all chunks, as in the scan; a block is 16 such groups
// of one (sequence, value head). Products with S are partial sums of 16 values a lane, which a halving reduction leaves
// one in each lane: row b * kRows + lane / kColumns, column lane % kColumns, for kBatches values b of a chunk. X and U
// stay among a group's own lanes, so only the chunk's K and Q (one after the other in one buffer) and T, P need block
// barriers.
// Waves of 32 take this path for K above 128 alone; the others' is delta_rule_matrix_gpu.hip or, without matrix units,
// delta_rule_split_gpu.hip. Decays by channel have kernels of their own (delta_rule_channel_gpu.hip).
// Resources: kColumns = 2, K = 128: 128 VGPRs or fewer, 30 KB of LDS: two blocks a CU. Bound by VALU.

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/common/contract.h"
#include "kernels/delta_rule_chunk/chunk_workspace_gpu-inl.h"
#include "kernels/delta_rule_chunk/delta_rule_walk_gpu-inl.h"
#include "kernels/delta_rule_scan/delta_rule_scan.h"

namespace gdn {
namespace gpu {
namespace {

using walk::kC;
using walk::kStride;
using walk::MultiplyLower;
using walk::ReadState;
using walk::RowFragment;
using walk::RowMover;
using walk::WalkShared;
using walk::WriteValues;

constexpr int kMostElements = 16;                  // K up to 256
constexpr int64_t kMostStride = int64_t{1} << 24;  // so that offsets inside a chunk have 32 bits, in bytes

template <int kWave, int kElements, int kColumns, bool kExact, typename Base>
// NOLINTNEXTLINE(readability-function-size): its phases share registers.
__global__ __launch_bounds__(kDeltaRuleThreads, kElements <= 8 ? 2 : 1) void DeltaRuleChunkKernel(ChunkArgs args) {
  constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  constexpr int kRows = 16 / kColumns;
  constexpr int kBatches = kC / kRows;
  using ChunkShared = WalkShared<kElements, kColumns>;
  ChunkShared& sh = SharedMemory<ChunkShared>();
  const DeltaRuleArgs& p = args.rule;
  const BlockTask task = TaskOf(p);
  const int64_t first = p.cu_seqlens[task.sequence];
  const int64_t end = p.cu_seqlens[task.sequence + 1];
  const int slot = p.slots[task.sequence];
  if (first == end) return;
  if (slot < 0) {
    ZeroOutput(p, task, kBlockColumns, first, end);
    return;
  }
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kColumnLanes;
  const int group = thread / kColumnLanes;
  const int column = task.column_block * kBlockColumns + group * kColumns;
  const int my_local = group * kColumns + lane % kColumns;
  const int my_column = task.column_block * kBlockColumns + my_local;
  const bool mine = kExact || my_column < p.value_dim;
  const int64_t key_offset = int64_t{task.key_head} * p.key_dim;
  Base* base = HeadBase<Base>(p, slot, task.head);
  float s[kColumns][kElements];
  LoadState<kElements, kColumns, kExact>(base + int64_t{column} * p.key_dim, p.value_dim - column, lane, p.key_dim, s);

  const int my_row = lane / kColumns;
  const int64_t o_stride = int64_t{p.value_heads} * p.value_dim;
  const uint32_t v_offset = my_row * static_cast<uint32_t>(p.v_stride) + my_column;
  const uint32_t o_offset = my_row * static_cast<uint32_t>(o_stride) + my_column;
  const float* v_rows = p.v + first * p.v_stride + int64_t{task.head} * p.value_dim;
  float* o_rows = p.output + (first * p.value_heads + task.head) * p.value_dim;
  const float* q_rows = p.q + first * p.q_stride + key_offset;
  const float* k_rows = p.k + first * p.k_stride + key_offset;
  const float* prepared =
      args.workspace + ChunkBlock(first, task.sequence, 0, p.value_heads, task.head) * ChunkWorkspace::kFloats;
  RowMover<kElements, kExact> mover;
  int rows = static_cast<int>(min(int64_t{kC}, end - first));
  mover.Fetch(q_rows, p.q_stride, rows);
#pragma unroll 1
  for (int64_t start = first; start < end; start += kC) {
    const Vec4 t4 = Load4(At(prepared + ChunkWorkspace::kT, threadIdx.x * 4));
    const Vec4 p4 = Load4(At(prepared + ChunkWorkspace::kP, threadIdx.x * 4));
    const float decays = thread < 2 * kC ? *At(prepared + ChunkWorkspace::kGrown, threadIdx.x) : 0.0f;
    if (start > first) SyncThreads();
    mover.Store(q_rows, p.q_stride, rows, p.key_dim, sh.rows);
    sh.t.Store4(thread / (kC / 4) * kStride + thread % (kC / 4) * 4, t4);
    sh.p.Store4(thread / (kC / 4) * kStride + thread % (kC / 4) * 4, p4);
    if (thread < 2 * kC) sh.decays[thread] = decays;
    SyncThreads();
    mover.Fetch(k_rows, p.k_stride, rows);
    float o[kBatches];
    ReadState<kWave, kElements, kColumns>(sh.rows, sh.values, lane, my_local, s, o);
    SyncThreads();
    mover.Store(k_rows, p.k_stride, rows, p.key_dim, sh.rows);
    SyncThreads();
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
      for (int b = 0; b < kBatches; ++b) {
        const float grown = sh.decays[b * kRows + my_row];
        x[b] = fmaf(-grown, read[b], x[b]);
        o[b] *= grown;
      }
    }
    WriteValues<kColumns>(sh.values, lane, my_local, x);
    WaveBarrier();
    float u[kBatches] = {};
    MultiplyLower<kColumns>(sh.t, sh.values, lane, my_local, u);
    WaveBarrier();
    WriteValues<kColumns>(sh.values, lane, my_local, u);
    WaveBarrier();
    MultiplyLower<kColumns>(sh.p, sh.values, lane, my_local, o);
    // By way of LDS, or the compiler would move the product behind the stores' guards, with all it has read in
    // registers.
    WaveBarrier();
    WriteValues<kColumns>(sh.values, lane, my_local, o);
    WaveBarrier();
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
      const int row = b * kRows + my_row;
      const float value = sh.values[my_local * kStride + row];
      if (mine && row < rows) *At(o_rows + b * kRows * o_stride, o_offset) = value;
    }
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
      const float tail = sh.decays[kC + b * kRows + my_row];
      u[b] *= tail;
    }
    WaveBarrier();
    WriteValues<kColumns>(sh.values, lane, my_local, u);
    WaveBarrier();

    rows = static_cast<int>(min(int64_t{kC}, end - start - kC));  // of the next chunk, if there is one
    v_rows += kC * p.v_stride;
    o_rows += kC * o_stride;
    q_rows += kC * p.q_stride;
    k_rows += kC * p.k_stride;
    prepared += int64_t{p.value_heads} * ChunkWorkspace::kFloats;
    if (rows > 0) mover.Fetch(q_rows, p.q_stride, rows);
    const float decay = sh.decays[kC - 1];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) s[c][i] *= decay;
    }
#pragma unroll 1
    for (int row = 0; row < kC; row += 4) {
      float tailed[kColumns][4];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const Vec4 v = sh.values.Load4((group * kColumns + c) * kStride + row);
        tailed[c][0] = v.x;
        tailed[c][1] = v.y;
        tailed[c][2] = v.z;
        tailed[c][3] = v.w;
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float k[kElements];
        RowFragment<kElements>(sh.rows, row + r, lane, k);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
#pragma unroll
          for (int i = 0; i < kElements; ++i) s[c][i] = fmaf(k[i], tailed[c][r], s[c][i]);
        }
      }
    }
    if constexpr (kRounds<Base>) {
      if ((start - first + kC) % kBaseRoundTokens == 0) RoundState<kElements, kColumns>(s);
    }
  }
  // Not the address that was loaded from, lest it take registers from the loop.
  StoreState<kElements, kColumns, kExact>(At(base, column * static_cast<uint32_t>(p.key_dim)), p.value_dim - column,
                                          lane, p.key_dim, s);
}

template <int kWave, int kElements, int kColumns>
absl::Status LaunchChunk(const DeltaRuleParams& params, const DeviceBatch& batch, float* workspace,
                         const Stream& stream) {
  constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  const ChunkArgs args{MakeDeltaRuleArgs(params, batch, kBlockColumns), workspace,
                       static_cast<int32_t>(CeilDivide(batch.max_length, kC))};
  GDN_RETURN_IF_ERROR(PrepareChunks(args, batch, stream));
  const Grid grid{int64_t{batch.sequences} * args.rule.value_heads * args.rule.column_blocks};
  return WithBaseElement(params.pool.layout, [&](auto element) {
    using Base = decltype(element);
    const auto kernel = ExactRule(params, kElements, kBlockColumns)
                            ? DeltaRuleChunkKernel<kWave, kElements, kColumns, true, Base>
                            : DeltaRuleChunkKernel<kWave, kElements, kColumns, false, Base>;
    return Launch("delta_rule_chunk", kernel, grid, kDeltaRuleThreads, stream, args);
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
  const bool wide = gpu::walk::TwoColumns(dims, batch.sequences, stream);
  return gpu::WithWaveWidth(stream, "delta_rule_chunk", [&](auto wave) {
    return gpu::WithElements<gpu::kMostElements>(dims.key_dim, [&](auto elements) {
      if constexpr (elements() >= 8) {
        if (wide) return gpu::LaunchChunk<wave(), elements(), 2>(params, batch, workspace, stream);
      }
      return gpu::LaunchChunk<wave(), elements(), 1>(params, batch, workspace, stream);
    });
  });
}

}  // namespace gdn
