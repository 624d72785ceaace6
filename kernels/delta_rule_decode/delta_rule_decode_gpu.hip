// The deferred delta rule on the GPU; G is the running sum of g since the base, e < t are the log's entries:
//   pred = e^{G_t} S0^T k_t + sum_{e<t} e^{G_t-G_e} (k_e.k_t) u_e        u_t = beta (v_t - pred)
//   o    = e^{G_t} S0^T q_t + sum_{e<=t} e^{G_t-G_e} (k_e.q_t) u_e
//   once the log holds L tokens:  S0 <- e^{G_L} S0 + sum_e e^{G_L-G_e} k_e u_e^T
//
// Threads: 16 lanes hold kColumns columns of S0 in registers for the whole call, so T tokens read it once; a block is
// 16 such groups of one (sequence, value head). Each group computes the dot products of one log entry for all of the
// block, and each lane of a group keeps one entry's u: the sums over the log ride along in the reduction of S0^T k and
// S0^T q. The block's last wave finds the entries' weights meanwhile. All loads of a call's first token are under way
// before the first barrier, and steps of one token a sequence have an instance of their own: what counts is how many
// columns a processor has on their way. The parts of a step are in delta_rule_decode_gpu-inl.h, K > 256 in
// delta_rule_decode_wide_gpu.hip, steps of one token of many heads, or of rows that do not fill the lanes, in
// delta_rule_decode_stream_gpu.hip, decays by channel in delta_rule_decode_channel_gpu.hip. Tokens are counted by their
// position n since the log was last empty: the log's entries first, then the call's. Entry n mod L of the log holds
// token n; folds fall after n = L - 1, 2 L - 1, ..
// Across blocks: rows of log_u are written by the block that owns their columns. Rows of log_k and log_g are read by
// every block of a head, so here only rows that no block reads are written, by one block each: those of the tokens
// before the first fold. A second kernel writes the rows of the tokens after it. A draft has all rows to itself: token
// n goes to row n, past L where need be, and folds stay in the registers, or in the workspace where K is in memory.
// Resources: at most 121 VGPRs, 83 for a token at K = 128; up to 9 KB of LDS; no spills (gfx906). Bound by memory: S0
// is K V floats a head, all else a tenth.

#include "base/status_macros.h"
#include "kernels/delta_rule_decode/delta_rule_decode.h"
#include "kernels/delta_rule_decode/delta_rule_decode_gpu-inl.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kMostElements = 16;  // of a column in a lane's registers

// Blocks that a processor must be able to hold: more loads under way. Where waves have 64 lanes a third costs spills,
// except in the narrowest blocks, which have registers for four.
template <int kWave, int kElements, int kColumns, bool kOneToken>
inline constexpr int kLeastBlocks = !kOneToken || kElements > 8 ? 2
                                    : kWave == 32               ? 3
                                    : kColumns == 2             ? 4
                                                                : 2;

template <int kWave, int kElements, int kColumns, bool kExact, bool kOneToken, typename Base>
__global__ __launch_bounds__(
    kDeltaRuleThreads,
    (kLeastBlocks<kWave, kElements, kColumns, kOneToken>)) void DeltaRuleDecodeKernel(DecodeArgs args) {
  BeginEarly();
  constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  DecodeShared<kColumns>& sh = SharedMemory<DecodeShared<kColumns>>();
  const DeltaRuleArgs& p = args.rule;
  const DecodeCall call = CallOf(args);
  if (call.tokens == 0) return;
  if (call.slot_index < 0) {
    ZeroOutput(p, call.task, kBlockColumns, call.first, call.first + call.tokens);
    return;
  }
  const DecodeLane my = LaneOf<kColumns>(p, call);
  float s[kColumns][kElements];
  const float* base_slot = p.pool + call.base_slot * p.at.slot_floats + p.at.base;
  LoadState<kElements, kColumns, kExact>(reinterpret_cast<const Base*>(base_slot) + my.column_offset, my.count, my.lane,
                                         p.key_dim, s);
  float u[kColumns];  // of log entry `lane`
  LoadLogU<kColumns, kExact>(my, call.log_length, u);
  float g = LoadLogG<kWave>(p, my, call.log_length);

  const int steps = kOneToken ? 1 : call.tokens;
  for (int t = 0; t < steps; ++t) {
    const int64_t row = call.first + t;
    // A row is never negative, but the compiler does not know, and so does not keep the guards' masks from token to
    // token: there are more of them than scalar registers. Likewise the masks of lanes.
    const DecodeToken token = TokenOf<kColumns>(call.log_length, row, t, kExact || row >= 0 ? p.key_dim : 0,
                                                kOneToken || row >= 0 ? my.lane : 0);
    float k[kElements];
    float q[kElements];
    LoadFragment<kElements, kExact>(TokenKey(p, my.task, row), my.lane, token.key_dim, k);
    LoadFragment<kElements, kExact>(TokenQuery(p, my.task, row), my.lane, token.key_dim, q);
    const float v = TokenValue<kExact>(p, my, token);
    const float beta = p.beta[row * p.value_heads + my.task.head];
    constexpr int kWaveGroups = kWave / kColumnLanes;
    if (my.group / kWaveGroups * kWaveGroups <= token.entry) {  // waves without entries have nothing to do
      float entry_k[kElements];
      LoadFragment<kElements, kExact>(
          KeyRow(p, my, call.first, call.log_length, token.since + min(my.group, token.entry)), my.lane, token.key_dim,
          entry_k);
      ShareEntryDots<kWave>(my, token, WideDot(entry_k, k), Dot(entry_k, q), sh);
    }
    FindWeights<kWave>(p, my, token, sh, g);
    SyncThreads();

    const auto state_dots = [&](int c, float& state_k, float& state_q) {
      state_k = Dot(s[c], k);
      state_q = Dot(s[c], q);
    };
    const float now = ReadToken<kWave, kColumns>(args, my, token, v, beta, u, state_dots, SharedLog(my, token, sh));
    if (!kOneToken || token.entry == kLogCapacity - 1) KeepU<kColumns>(my, token, now, sh, u);
    AppendRow(args, my, kDeltaRuleGroups - 1, token, g,
              [&](float* log_k) { StoreFragment<kElements, kExact>(log_k, my.lane, token.key_dim, k); });
    if (token.entry == kLogCapacity - 1) {
      EmptyLog<kColumns>(my, sh, u, g);
      FoldInRegisters<kElements, kColumns, kExact, Base>(args, my, token, call.first, call.log_length, sh, s);
    }
  }
}

// Log rows of the tokens after a call's first fold; of each row the last such token. A block a sequence.
__global__ __launch_bounds__(kDeltaRuleThreads) void AppendFoldedLogKernel(DecodeArgs args) {
  const DeltaRuleArgs& p = args.rule;
  const int slot_index = p.slots[blockIdx.x];
  const int64_t first = p.cu_seqlens[blockIdx.x];
  const int tokens = static_cast<int>(p.cu_seqlens[blockIdx.x + 1] - first);
  if (slot_index < 0 || tokens == 0) return;
  const int log_length = args.log_lengths[blockIdx.x];
  const int positions = log_length + tokens;
  float* slot = p.pool + slot_index * p.at.slot_floats;
  const int features = p.key_heads * p.key_dim;
  for (int n = max(kLogCapacity, positions - kLogCapacity); n < positions; ++n) {
    const int64_t row = first + n - log_length;
    const int entry = n % kLogCapacity;
    for (int i = static_cast<int>(threadIdx.x); i < features; i += kDeltaRuleThreads) {
      slot[p.at.log_k + int64_t{entry} * features + i] = p.k[row * p.k_stride + i];
    }
    for (int i = static_cast<int>(threadIdx.x); i < p.value_heads; i += kDeltaRuleThreads) {
      slot[p.at.log_g + int64_t{entry} * p.value_heads + i] = p.g[row * p.value_heads + i];
    }
  }
}

template <int kWave, int kElements, int kColumns, bool kExact, bool kOneToken, typename Base>
absl::Status LaunchDecode(const DeltaRuleDecodeParams& params, const DeviceBatch& batch, const Stream& stream) {
  const DecodeArgs args = MakeDecodeArgs(params, batch, kDeltaRuleGroups * kColumns, /*unwritten=*/nullptr);
  return Launch("delta_rule_decode", DeltaRuleDecodeKernel<kWave, kElements, kColumns, kExact, kOneToken, Base>,
                DecodeGrid(args, batch), kDeltaRuleThreads, stream, args);
}

// Shapes that do not fill the lanes are guarded element by element, in the narrowest blocks.
template <int kWave, int kElements>
absl::Status LaunchDecodeOf(const DeltaRuleDecodeParams& params, const DeviceBatch& batch, const Stream& stream) {
  constexpr int kMost = kMostColumns<kElements>;
  const LayerDims& dims = params.rule.pool.layout.dims();
  const int64_t heads = int64_t{batch.sequences} * dims.value_heads;
  const int columns = ChooseColumns(kMost, heads, dims.value_dim, stream);
  return WithBaseElement(params.rule.pool.layout, [&](auto base) {
    using Base = decltype(base);
    if (!ExactRule(params.rule, kElements, kDeltaRuleGroups * columns)) {
      constexpr int kNarrowest = kElements <= 8 ? 2 : 1;
      return LaunchDecode<kWave, kElements, kNarrowest, false, false, Base>(params, batch, stream);
    }
    return WithColumns<kMost>(columns, [&](auto chosen) {
      if (batch.max_length <= 1) {
        return LaunchDecode<kWave, kElements, chosen(), true, true, Base>(params, batch, stream);
      }
      return LaunchDecode<kWave, kElements, chosen(), true, false, Base>(params, batch, stream);
    });
  });
}

// Whether a step takes records, or finds them first: that is a launch more, which few heads are too short for.
bool UsesRecords(const DeltaRuleDecodeParams& params, const Stream& stream) {
  const StateLayout& layout = params.rule.pool.layout;
  const int64_t floats = DecodeRecordFloatsGpu(layout, params.rule.batch, stream);
  if (floats == 0 || !VectorRule(params.rule)) return false;
  const int64_t heads = floats / kDecodeRecordFloats;
  return params.records != nullptr || heads >= int64_t{stream.processors} * 4 || layout.dims().key_dim % 64 != 0;
}

absl::Status LaunchAnyDecode(const DeltaRuleDecodeParams& params, const DeviceBatch& batch, float* workspace,
                             const Stream& stream) {
  const int32_t key_dim = params.rule.pool.layout.dims().key_dim;
  if (UsesRecords(params, stream)) return DeltaRuleDecodeStreamGpu(params, batch, workspace, stream);
  if (key_dim > kMostElements * kColumnLanes) return DeltaRuleDecodeWideGpu(params, batch, workspace, stream);
  return WithWaveWidth(stream, "delta_rule_decode", [&](auto wave) {
    return WithElements<kMostElements>(
        key_dim, [&](auto elements) { return LaunchDecodeOf<wave(), elements()>(params, batch, stream); });
  });
}

}  // namespace
}  // namespace gpu

int64_t GpuWorkspaceFloats(const DeltaRuleDecodeParams& params, const gpu::Stream& stream) {
  const LayerDims& dims = params.rule.pool.layout.dims();
  if (dims.decays_by_channel()) return gpu::ChannelDecodeWorkspaceFloats(params, stream);
  if (gpu::UsesRecords(params, stream)) {
    return params.records != nullptr ? 0 : DecodeRecordFloatsGpu(params.rule.pool.layout, params.rule.batch, stream);
  }
  return dims.key_dim > gpu::kMostElements * gpu::kColumnLanes ? gpu::UnwrittenFloats(params) : 0;
}

absl::Status DeltaRuleDecodeGpu(const DeltaRuleDecodeParams& params, const gpu::DeviceBatch& batch, float* workspace,
                                const gpu::Stream& stream) {
  if (batch.sequences == 0 || batch.tokens == 0) return absl::OkStatus();
  if (params.rule.pool.layout.dims().decays_by_channel()) {
    GDN_RETURN_IF_ERROR(gpu::DeltaRuleChannelDecodeGpu(params, batch, workspace, stream));
  } else {
    GDN_RETURN_IF_ERROR(gpu::LaunchAnyDecode(params, batch, workspace, stream));
    // One token never comes after a fold of its own call, and a draft's have been written.
    if (batch.max_length > 1 && !params.draft) {
      GDN_RETURN_IF_ERROR(gpu::Launch("delta_rule_append_folded_log", gpu::AppendFoldedLogKernel, {batch.sequences},
                                      gpu::kDeltaRuleThreads, stream, gpu::MakeDecodeArgs(params, batch, 1, nullptr)));
    }
  }
  AdvanceLogs(params);
  return absl::OkStatus();
}

}  // namespace gdn
