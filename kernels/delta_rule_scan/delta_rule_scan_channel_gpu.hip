// The delta rule on the GPU, token by token, where each key channel has a decay:
//   S <- diag(e^g) S;  u = beta (v - S^T k);  o = S^T q + (k.q) u;  S <- S + k u^T
//
// Threads: as delta_rule_scan_gpu.hip: 16 lanes hold kColumns columns of S in registers over all tokens. The state is
// decayed where it lies, so both products read one fragment and g needs no registers of its own.
// Beyond K = 256 a lane's part of g, k and q would fill its registers: a token's rows lie in LDS, found once for the
// whole block, at a barrier a token.
// Resources: no LDS up to K = 256, 24 KB beyond 512; no spills (gfx906). Bound by VALU: a lane's exponentials serve its
// kColumns columns alone.

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

// What a token brings to all groups, where a lane's part of it would fill the registers: rows of e^g, k and q. Two of
// each, for a fast wave may be a token ahead.
template <int kElements>
struct TokenRows {
  static constexpr int kChannels = kColumnLanes * kElements;
  static constexpr int kDecay = 0;
  static constexpr int kKey = kChannels;
  static constexpr int kQuery = 2 * kChannels;
  static constexpr int kFloats = 3 * kChannels;
  LdsArray<float, 2 * kFloats> rows;
};
struct NoRows {};

// Zeros in channels past K, which no token changes.
template <int kElements>
__device__ __forceinline__ void ClearRows(int key_dim, TokenRows<kElements>& sh) {
  using Rows = TokenRows<kElements>;
  for (int row = 0; row < 2 * Rows::kFloats; row += Rows::kChannels) {
    for (int c = key_dim + static_cast<int>(threadIdx.x); c < Rows::kChannels; c += kDeltaRuleThreads) {
      sh.rows[row + c] = 0.0f;
    }
  }
}

// The token's rows there; returns where they are.
template <int kElements>
__device__ __forceinline__ int ShareToken(const DeltaRuleArgs& p, const BlockTask& task, int64_t row, int64_t first,
                                          TokenRows<kElements>& sh) {
  using Rows = TokenRows<kElements>;
  const int at = static_cast<int>((row - first) % 2) * Rows::kFloats;
  const int64_t key_offset = int64_t{task.key_head} * p.key_dim;
  const float* g = p.g + (row * p.value_heads + task.head) * p.key_dim;
  const float* k = p.k + row * p.k_stride + key_offset;
  const float* q = p.q + row * p.q_stride + key_offset;
#pragma unroll 1
  for (int c = static_cast<int>(threadIdx.x); c < p.key_dim; c += kDeltaRuleThreads) {
    sh.rows[at + Rows::kDecay + c] = TokenDecay(g[c]);
    sh.rows[at + Rows::kKey + c] = k[c];
    sh.rows[at + Rows::kQuery + c] = q[c];
  }
  SyncThreads();
  return at;
}

// Decay and Step from rows at `at`, a group's one column at a time: with their products in their order, and so their
// bits. Returns the output to lane 0.
template <int kWave, int kElements>
__device__ __forceinline__ float StepByRows(TokenRows<kElements>& sh, int at, int lane, float v, float beta,
                                            float (&s)[kElements]) {
  using Rows = TokenRows<kElements>;
  // The sums of Dot, which begin with products: -0 is what adding a product to leaves it as it is.
  float kq[4] = {-0.0f, -0.0f, -0.0f, -0.0f};
  float sk[4] = {-0.0f, -0.0f, -0.0f, -0.0f};
  float sq[4] = {-0.0f, -0.0f, -0.0f, -0.0f};
#pragma unroll
  for (int i = 0; i < kElements; i += 4) {
    float decay[4];
    float k[4];
    float q[4];
    const int lane_at = at + i * kColumnLanes + lane * 4;
    Unpack4(sh.rows.Load4(lane_at + Rows::kDecay), decay);
    Unpack4(sh.rows.Load4(lane_at + Rows::kKey), k);
    Unpack4(sh.rows.Load4(lane_at + Rows::kQuery), q);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      s[i + j] *= decay[j];
      kq[j] = fmaf(k[j], q[j], kq[j]);
      sk[j] = fmaf(s[i + j], k[j], sk[j]);
      sq[j] = fmaf(s[i + j], q[j], sq[j]);
    }
  }
  const float all_kq = GroupSum<kColumnLanes, kWave>((kq[0] + kq[1]) + (kq[2] + kq[3]));
  const float all_sk = GroupSum<kColumnLanes, kWave>((sk[0] + sk[1]) + (sk[2] + sk[3]));
  const float all_sq = GroupSum<kColumnLanes, kWave>((sq[0] + sq[1]) + (sq[2] + sq[3]));
  const float u = beta * (v - all_sk);
#pragma unroll
  for (int i = 0; i < kElements; i += 4) {
    float k[4];
    Unpack4(sh.rows.Load4(at + i * kColumnLanes + lane * 4 + Rows::kKey), k);
#pragma unroll
    for (int j = 0; j < 4; ++j) s[i + j] = fmaf(k[j], u, s[i + j]);
  }
  return fmaf(all_kq, u, all_sq);
}

template <int kElements, int kColumns>
__device__ __forceinline__ void Decay(const float (&g)[kElements], float (&s)[kColumns][kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const float decay = TokenDecay(g[i]);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) s[c][i] *= decay;
  }
}

template <int kWave, int kElements, int kColumns, bool kExact, typename Base>
__global__ __launch_bounds__(kDeltaRuleThreads) void DeltaRuleChannelScanKernel(DeltaRuleArgs p, BetaAlone gates) {
  constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  constexpr bool kAhead = kElements <= kMostAhead;
  static_assert(kAhead || (kColumns == 1 && !kExact));
  using Shared = std::conditional_t<kAhead, NoRows, TokenRows<kElements>>;
  [[maybe_unused]] Shared& sh = SharedMemory<Shared>();
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

  [[maybe_unused]] Token<kAhead ? kElements : 1, kColumns> token;
  [[maybe_unused]] float g[kAhead ? kElements : 1];
  if constexpr (kAhead) {
    LoadDecays<kElements, kExact>(p, task, first, lane, g);
    LoadToken<kElements, kColumns, kExact>(p, gates, task, first, column, lane, token);
  } else {
    ClearRows<kElements>(p.key_dim, sh);
  }
  for (int64_t row = first; row < end; ++row) {
    float o;
    if constexpr (kAhead) {
      Decay(g, s);
      const int64_t ahead = row + 1 < end ? row + 1 : row;
      Token<kElements, kColumns> next;
      LoadDecays<kElements, kExact>(p, task, ahead, lane, g);
      LoadToken<kElements, kColumns, kExact>(p, gates, task, ahead, column, lane, next);
      o = Step<kWave, kElements, kColumns>(token, lane, s);
      token = next;
    } else {
      const int at = ShareToken<kElements>(p, task, row, first, sh);
      const float v = count > 0 ? p.v[row * p.v_stride + int64_t{task.head} * p.value_dim + column] : 0.0f;
      o = StepByRows<kWave, kElements>(sh, at, lane, v, gates.BetaOf(row * p.value_heads + task.head), s[0]);
    }
    if (lane < kColumns && lane < count) {
      p.output[(row * p.value_heads + task.head) * p.value_dim + column + lane] = o;
    }
    if constexpr (kRounds<Base>) {
      if ((row + 1 - first) % kBaseRoundTokens == 0) RoundState<kElements, kColumns>(s);
    }
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
  return WithScanShape("delta_rule_scan", params.pool.layout.dims(), batch, stream,
                       [&](auto wave, auto elements, auto columns) {
                         return LaunchChannelScan<wave(), elements(), columns()>(params, batch, stream);
                       });
}

}  // namespace gdn::gpu
