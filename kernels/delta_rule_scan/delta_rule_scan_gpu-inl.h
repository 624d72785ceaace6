// The token-by-token delta rule in device code, with gates from a `Gates` object. Used by delta_rule_scan, which loads
// them, and by sigmoid_gating_recurrent, which computes them.
//
//   struct Gates { __device__ float LogDecayOf(int64_t, int head) const; __device__ float BetaOf(int64_t) const; };
// `at` is token * HV + head. Thread mapping, resources and bound: delta_rule_scan_gpu.hip.
//
//   return ScanWithGates("delta_rule_scan", params, StoredGates{params.g, params.beta}, batch, stream);
#pragma once

#include "kernels/common/base_columns_gpu-inl.h"
#include "kernels/common/log_decay_gpu-inl.h"
#include "kernels/delta_rule_scan/delta_rule_scan.h"

namespace gdn::gpu {

// Launches the scan for dims that decay by channel. `params` must have been validated; `batch` is params.batch with its
// arrays on the device.
absl::Status DeltaRuleChannelScanGpu(const DeltaRuleParams& params, const DeviceBatch& batch, const Stream& stream);

namespace {

// A token's data for one group of 16 lanes: this lane's elements of q and k, v of the group's columns, and the gates.
// The next token's is loaded ahead only up to K = 256; beyond there are no registers.
template <int kElements, int kColumns>
struct Token {
  float q[kElements];
  float k[kElements];
  float v[kColumns];
  float g, beta;
};

template <int kElements, int kColumns, bool kExact, typename Gates>
__device__ __forceinline__ void LoadToken(const DeltaRuleArgs& p, const Gates& gates, const BlockTask& task,
                                          int64_t row, int column, int lane, Token<kElements, kColumns>& token) {
  const int64_t key_offset = int64_t{task.key_head} * p.key_dim;
  // A row is never negative, but the compiler does not know that. So it recomputes the guards' masks for each token
  // instead of keeping them: there are more masks than scalar registers.
  const int key_dim = kExact || row >= 0 ? p.key_dim : 0;
  LoadFragment<kElements, kExact>(p.k + row * p.k_stride + key_offset, lane, key_dim, token.k);
  LoadFragment<kElements, kExact>(p.q + row * p.q_stride + key_offset, lane, key_dim, token.q);
  LoadColumns<kColumns, kExact>(p.v + row * p.v_stride + int64_t{task.head} * p.value_dim + column,
                                p.value_dim - column, token.v);
  const int64_t at = row * p.value_heads + task.head;
  token.g = gates.LogDecayOf(at, task.head);
  token.beta = gates.BetaOf(at);
}

// Applies one token to the group's columns of the state, of which each lane holds its kElements in `s`. Lane c returns
// the output of column c; lanes from kColumns on return 0. All lanes of the wave call.
template <int kWave, int kElements, int kColumns>
__device__ __forceinline__ float Step(const Token<kElements, kColumns>& token, int lane,
                                      float (&s)[kColumns][kElements]) {
  const float decay = TokenDecay(token.g);
  const float kq = GroupSum<kColumnLanes, kWave>(Dot(token.k, token.q));
  float u[kColumns];
  float mine = 0.0f;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const float sk = GroupSum<kColumnLanes, kWave>(Dot(s[c], token.k));
    const float sq = GroupSum<kColumnLanes, kWave>(Dot(s[c], token.q));
    u[c] = token.beta * fmaf(-decay, sk, token.v[c]);
    const float o = fmaf(kq, u[c], decay * sq);
    if (lane == c) mine = o;
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) s[c][i] = fmaf(token.k[i], u[c], decay * s[c][i]);
  }
  return mine;
}

template <int kWave, int kElements, int kColumns, bool kExact, typename Gates, typename Base>
__global__ __launch_bounds__(kDeltaRuleThreads) void DeltaRuleScanKernel(DeltaRuleArgs p, Gates gates) {
  constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
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
  Base* columns = reinterpret_cast<Base*>(p.pool + slot * p.at.slot_floats + p.at.base) +
                  (int64_t{task.head} * p.value_dim + column) * p.key_dim;
  LoadState<kElements, kColumns, kExact>(columns, count, lane, p.key_dim, s);

  constexpr bool kAhead = kElements <= 16;
  Token<kElements, kColumns> token;
  if constexpr (kAhead) LoadToken<kElements, kColumns, kExact>(p, gates, task, first, column, lane, token);
  for (int64_t row = first; row < end; ++row) {
    Token<kElements, kColumns> next;
    if constexpr (kAhead) {
      LoadToken<kElements, kColumns, kExact>(p, gates, task, row + 1 < end ? row + 1 : row, column, lane, next);
    } else {
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

template <int kWave, int kElements, int kColumns, typename Base, typename Gates>
absl::Status LaunchScan(const char* name, const DeltaRuleParams& params, const Gates& gates, const DeviceBatch& batch,
                        const Stream& stream) {
  constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  const DeltaRuleArgs args = MakeDeltaRuleArgs(params, batch, kBlockColumns);
  const Grid grid{int64_t{batch.sequences} * args.value_heads * args.column_blocks};
  const auto kernel = ExactRule(params, kElements, kBlockColumns)
                          ? DeltaRuleScanKernel<kWave, kElements, kColumns, true, Gates, Base>
                          : DeltaRuleScanKernel<kWave, kElements, kColumns, false, Gates, Base>;
  return Launch(name, kernel, grid, kDeltaRuleThreads, stream, args, gates);
}

// Calls launch(wave, elements, columns) with std::integral_constants, and returns its status: the wave width, a lane's
// elements of a column, and a group's value columns. OK without a call if there are no tokens. FAILED_PRECONDITION
// (DEVICE_UNSUPPORTED), naming the kernel `name`, if this build has no kernels for the stream's wave width.
template <typename LaunchOf>
absl::Status WithScanShape(const char* name, const LayerDims& dims, const DeviceBatch& batch, const Stream& stream,
                           const LaunchOf& launch) {
  if (batch.sequences == 0 || batch.tokens == 0) return absl::OkStatus();
  // Four columns per group take the least work per column, once they fill the device.
  const int64_t wide_blocks =
      int64_t{batch.sequences} * dims.value_heads * CeilDivide(dims.value_dim, 4 * kDeltaRuleGroups);
  const bool wide = wide_blocks >= int64_t{stream.processors} * 4;
  return WithWaveWidth(stream, name, [&](auto wave) {
    return WithElements<kMaxHeadDim / kColumnLanes>(dims.key_dim, [&](auto elements) {
      if constexpr (elements() <= 8) {
        if (wide) return launch(wave, elements, std::integral_constant<int, 4>());
      }
      constexpr int kColumns = elements() <= 16 ? 2 : 1;
      return launch(wave, elements, std::integral_constant<int, kColumns>());
    });
  });
}

// Launches the scan with g and beta from `gates` instead of the params' own; `name` is the kernel's for errors.
// `params` must have been validated. Base: the element type of the layout's bases, which the caller chooses.
template <typename Base = float, typename Gates>
absl::Status ScanWithGates(const char* name, const DeltaRuleParams& params, const Gates& gates,
                           const DeviceBatch& batch, const Stream& stream) {
  return WithScanShape(name, params.pool.layout.dims(), batch, stream, [&](auto wave, auto elements, auto columns) {
    return LaunchScan<wave(), elements(), columns(), Base>(name, params, gates, batch, stream);
  });
}

}  // namespace
}  // namespace gdn::gpu
