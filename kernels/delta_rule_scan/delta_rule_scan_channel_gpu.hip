// The delta rule on the GPU, token by token, where each key channel has a decay:
//   S <- diag(e^g) S;  u = beta (v - S^T k);  o = S^T q + (k.q) u;  S <- S + k u^T
//
// Threads: as delta_rule_scan_gpu.hip: 16 lanes hold kColumns columns of S in registers over all tokens. The state is
// decayed where it lies, so both products read one fragment and g needs no registers of its own.
// Resources: no LDS, no spills (gfx906). Bound by VALU: a lane's exponentials serve its kColumns columns alone.

#include "base/status_macros.h"
#include "kernels/delta_rule_scan/delta_rule_scan_gpu-inl.h"

namespace gdn::gpu {
namespace {

constexpr int kMostAhead = 16;  // elements of a lane whose next token is loaded ahead

// The state is decayed before Step sees it.
struct BetaAlone {
  const float* beta;

  __device__ __forceinline__ float LogDecayOf(int64_t at, int head) const { return 0.0f; }
  __device__ __forceinline__ float BetaOf(int64_t at) const { return beta[at]; }
};

// The lane's log decays of a token; a row is of K floats.
template <int kElements, bool kExact>
__device__ __forceinline__ void LoadDecays(const DeltaRuleArgs& p, const BlockTask& task, int64_t row, int lane,
                                           float (&g)[kElements]) {
  // As LoadToken has it: so that no masks are kept from token to token.
  const int key_dim = kExact || row >= 0 ? p.key_dim : 0;
  LoadFragment<kElements, kExact>(p.g + (row * p.value_heads + task.head) * p.key_dim, lane, key_dim, g);
}

// By and by, of rows of which a lane's part would fill the registers.
template <int kElements, int kColumns, bool kExact>
__device__ __forceinline__ void DecayInPieces(const DeltaRuleArgs& p, const BlockTask& task, int64_t row, int lane,
                                              float (&s)[kColumns][kElements]) {
  const int key_dim = kExact || row >= 0 ? p.key_dim : 0;
  const float* g_row = p.g + (row * p.value_heads + task.head) * p.key_dim;
#pragma unroll
  for (int i = 0; i < kElements; i += 4) {
    float g[4];
    LoadPiece<4, kExact>(g_row + i * kColumnLanes, lane, key_dim - i * kColumnLanes, g);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float decay = expf(g[j]);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) s[c][i + j] *= decay;
    }
    WaveBarrier();  // else the compiler reads the whole row ahead, and the token, and spills
  }
}

template <int kElements, int kColumns>
__device__ __forceinline__ void Decay(const float (&g)[kElements], float (&s)[kColumns][kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const float decay = expf(g[i]);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) s[c][i] *= decay;
  }
}

template <int kWave, int kElements, int kColumns, bool kExact, typename Base>
__global__ __launch_bounds__(kDeltaRuleThreads) void DeltaRuleChannelScanKernel(DeltaRuleArgs p, BetaAlone gates) {
  constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  constexpr bool kAhead = kElements <= kMostAhead;
  const BlockTask task = TaskOf(p);
  const int64_t first = p.cu_seqlens[task.sequence];
  const int64_t end = p.cu_seqlens[task.sequence + 1];
  const int slot = p.slots[task.sequence];
  if (first == end) return;
  if (slot < 0) {
    ZeroOutput(p, task, kBlockColumns, first, end);
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % kColumnLanes;
  const int group = static_cast<int>(threadIdx.x) / kColumnLanes;
  // Groups past V compute on zeros and store nothing.
  const int column = task.column_block * kBlockColumns + group * kColumns;
  const int count = p.value_dim - column;
  float s[kColumns][kElements];
  Base* columns = HeadBase<Base>(p, slot, task.head) + int64_t{column} * p.key_dim;
  LoadState<kElements, kColumns, kExact>(columns, count, lane, p.key_dim, s);

  Token<kElements, kColumns> token;
  float g[kAhead ? kElements : 4];
  if constexpr (kAhead) {
    LoadDecays<kElements, kExact>(p, task, first, lane, g);
    LoadToken<kElements, kColumns, kExact>(p, gates, task, first, column, lane, token);
  }
  for (int64_t row = first; row < end; ++row) {
    Token<kElements, kColumns> next;
    if constexpr (kAhead) {
      Decay(g, s);
      const int64_t ahead = row + 1 < end ? row + 1 : row;
      LoadDecays<kElements, kExact>(p, task, ahead, lane, g);
      LoadToken<kElements, kColumns, kExact>(p, gates, task, ahead, column, lane, next);
    } else {
      DecayInPieces<kElements, kColumns, kExact>(p, task, row, lane, s);
      LoadToken<kElements, kColumns, kExact>(p, gates, task, row, column, lane, token);
    }
    const float o = Step<kWave, kElements, kColumns>(token, lane, s);
    if (lane < kColumns && lane < count) {
      p.output[(row * p.value_heads + task.head) * p.value_dim + column + lane] = o;
    }
    if constexpr (kRounds<Base>) {
      if ((row + 1 - first) % kBaseRoundTokens == 0) RoundState<kElements, kColumns>(s);
    }
    if constexpr (kAhead) token = next;
  }
  StoreState<kElements, kColumns, kExact>(columns, count, lane, p.key_dim, s);
}

template <int kWave, int kElements, int kColumns>
absl::Status LaunchChannelScan(const DeltaRuleParams& params, const DeviceBatch& batch, const Stream& stream) {
  constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  const DeltaRuleArgs args = MakeDeltaRuleArgs(params, batch, kBlockColumns);
  const Grid grid{int64_t{batch.sequences} * args.value_heads * args.column_blocks};
  return WithBaseElement(params.pool.layout, [&](auto element) {
    using Base = decltype(element);
    if constexpr (kElements <= kMostAhead) {
      if (ExactRule(params, kElements, kBlockColumns) && Aligned16(params.g)) {
        return Launch("delta_rule_scan", DeltaRuleChannelScanKernel<kWave, kElements, kColumns, true, Base>, grid,
                      kDeltaRuleThreads, stream, args, BetaAlone{params.beta});
      }
    }
    return Launch("delta_rule_scan", DeltaRuleChannelScanKernel<kWave, kElements, kColumns, false, Base>, grid,
                  kDeltaRuleThreads, stream, args, BetaAlone{params.beta});
  });
}

}  // namespace

absl::Status DeltaRuleChannelScanGpu(const DeltaRuleParams& params, const DeviceBatch& batch, const Stream& stream) {
  if (batch.sequences == 0 || batch.tokens == 0) return absl::OkStatus();
  const LayerDims& dims = params.pool.layout.dims();
  const int64_t wide_blocks =
      int64_t{batch.sequences} * dims.value_heads * CeilDivide(dims.value_dim, 4 * kDeltaRuleGroups);
  const bool wide = wide_blocks >= int64_t{stream.processors} * 4;
  return WithWaveWidth(stream, "delta_rule_scan", [&](auto wave) {
    return WithElements<kMaxHeadDim / kColumnLanes>(dims.key_dim, [&](auto elements) {
      if constexpr (elements() <= 8) {
        if (wide) return LaunchChannelScan<wave(), elements(), 4>(params, batch, stream);
      }
      constexpr int kColumns = elements() <= kMostAhead ? 2 : 1;
      return LaunchChannelScan<wave(), elements(), kColumns>(params, batch, stream);
    });
  });
}

}  // namespace gdn::gpu
