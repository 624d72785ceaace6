// The deferred delta rule on the GPU where each key channel has a decay; G is [K], the running sum of g since the base:
//   pred = S0^T (e^{G_t} k_t) + sum_{e<t} ((e^{G_t-G_e} k_e).k_t) u_e        u_t = beta (v_t - pred)
//   o    = S0^T (e^{G_t} q_t) + sum_{e<=t} ((e^{G_t-G_e} k_e).q_t) u_e
//   once the log holds L tokens:  S0 <- diag(e^{G_L}) S0 + sum_e (e^{G_L-G_e} k_e) u_e^T
//
// Threads: as delta_rule_decode_gpu.hip, whose parts these are: 16 lanes hold kColumns columns of S0 in registers for
// the whole call, a block is 16 such groups of one (sequence, value head). First a thread has a channel, with some of
// the entries: it finds their weights and the decayed k and q, which all groups take from LDS. Then group e has entry
// e: its dot products, and before a fold its weighted key, so that the fold reads nothing from memory. Rows of the log
// that no block reads are written by one block of a head, when its channels' threads have them in registers anyway.
// Where waves have 32 lanes and heads are many, all of this but the columns' share is found first, once a head, and
// left in a record; delta_rule_decode_stream_gpu.hip does the rest. Keys of more than 256 elements are
// delta_rule_decode_channel_wide_gpu.hip's.
// Resources: up to 25 KB of LDS; whole rows spill nothing, others in calls of several tokens a few (gfx906). Bound by
// memory: beside K V floats of S0 a head, a log's keys and decays are a twentieth.

#include "base/status_macros.h"
#include "kernels/delta_rule_decode/channel_decode_gpu-inl.h"
#include "kernels/delta_rule_decode/decode_record_gpu-inl.h"
#include "kernels/delta_rule_decode/delta_rule_decode.h"
#include "kernels/delta_rule_decode/delta_rule_decode_gpu-inl.h"

namespace gdn::gpu {
namespace {

constexpr int kMostElements = 16;  // of a column in a lane's registers

// The token in a channel, from the call's tensors.
__device__ __forceinline__ ChannelToken ChannelTokenOf(const DeltaRuleArgs& p, const DecodeLane& my,
                                                       const DecodeToken& token, int channel, bool whole) {
  ChannelToken now;
  now.g = p.g[(token.row * p.value_heads + my.task.head) * p.key_dim + channel];
  if (whole) {
    now.k = TokenKey(p, my.task, token.row)[channel];
    now.q = TokenQuery(p, my.task, token.row)[channel];
  }
  return now;
}

// The same of a log that stays in memory: of rows that are not whole, whose guards leave no registers for it.
template <int kElements, typename Shared>
__device__ __forceinline__ void WeighTokenInMemory(const DecodeArgs& args, const DecodeLane& my, const DecodeCall& call,
                                                   const DecodeToken& token, Shared& sh) {
  const DeltaRuleArgs& p = args.rule;
  const int channel = my.thread % kLaneChannels<kElements>;
  const int low = my.thread / kLaneChannels<kElements> * kPartEntries<kElements>;
  const bool inside = channel < token.key_dim;
  const float decay = WeighInMemory(
      token.entry + 1, low, low + kPartEntries<kElements>,
      [&](int e) { return inside ? DecayRow(p, my, call.first, call.log_length, token.since + e)[channel] : 0.0f; },
      [&](int e, float weight) { sh.weight[e * Shared::kChannels + channel] = weight; });
  if (low != 0) return;
  float k = 0.0f;
  float q = 0.0f;
  float g = 0.0f;
  if (inside) {
    k = TokenKey(p, my.task, token.row)[channel];
    q = TokenQuery(p, my.task, token.row)[channel];
    g = p.g[(token.row * p.value_heads + my.task.head) * p.key_dim + channel];
  }
  ShareToken(args, my, token, channel, inside, decay, k, q, g, sh);
}

// Blocks that a processor must be able to hold: more loads under way.
template <int kWave, int kElements, bool kOneToken>
inline constexpr int kLeastBlocks = kElements > 16                              ? 1
                                    : kWave == 32 && kOneToken&& kElements <= 8 ? 3
                                                                                : 2;

template <int kWave, int kElements, int kColumns, bool kExact, bool kOneToken, typename Base>
__global__ __launch_bounds__(
    kDeltaRuleThreads, (kLeastBlocks<kWave, kElements, kOneToken>)) void DeltaRuleChannelDecodeKernel(DecodeArgs args) {
  BeginEarly();
  using Shared = ChannelShared<kElements, kColumns, kOneToken>;
  Shared& sh = SharedMemory<Shared>();
  const DeltaRuleArgs& p = args.rule;
  DecodeCall call = CallOf(args);
  if (call.tokens == 0) return;
  if (call.slot_index < 0) {
    ZeroOutput(p, call.task, Shared::kBlockColumns, call.first, call.first + call.tokens);
    return;
  }
  if constexpr (!kExact) CountInVectors(sh, call);
  const DecodeLane my = LaneOf<kColumns>(p, call);
  float s[kColumns][kElements];
  const float* base_slot = p.pool + call.base_slot * p.at.slot_floats + p.at.base;
  LoadState<kElements, kColumns, kExact>(reinterpret_cast<const Base*>(base_slot) + my.column_offset, my.count, my.lane,
                                         p.key_dim, s);
  float u[kColumns];  // of log entry `lane`
  LoadLogU<kColumns, kExact>(my, call.log_length, u);

  [[maybe_unused]] ChannelOfLog<kElements> channel_log;
  if constexpr (kExact) channel_log = LoadChannelOfLog<kElements>(p, my, call.log_length);

  const int steps = kOneToken ? 1 : call.tokens;
  for (int t = 0; t < steps; ++t) {
    const int64_t row = call.first + t;
    // As DeltaRuleDecodeKernel has it: so that no masks are kept from token to token.
    const DecodeToken token = TokenOf<kColumns>(call.log_length, row, t, kExact || row >= 0 ? p.key_dim : 0,
                                                kOneToken || row >= 0 ? my.lane : 0);
    const float v = TokenValue<kExact>(p, my, token);
    const float beta = p.beta[row * p.value_heads + my.task.head];
    constexpr int kWaveGroups = kWave / kColumnLanes;
    const bool works = my.group / kWaveGroups * kWaveGroups <= token.entry;  // waves without entries do not
    float entry_k[kElements];
    if (works) {
      const int entry = min(my.group, token.entry);
      LoadFragment<kElements, kExact>(KeyRow(p, my, call.first, call.log_length, token.since + entry), my.lane,
                                      token.key_dim, entry_k);
    }
    if constexpr (kExact) {
      const auto token_at = [&](int channel, bool whole) { return ChannelTokenOf(p, my, token, channel, whole); };
      WeighToken<kElements>(args, my, token, channel_log, token_at, sh);
    } else {
      WeighTokenInMemory<kElements>(args, my, call, token, sh);
    }
    SyncThreads();
    if (works) EntryProducts<kWave, kElements>(my, token, entry_k, sh);
    float state_k[kColumns];
    float state_q[kColumns];
    {
      const int buffer = token.t % Shared::kBuffers * 2 * Shared::kChannels;
      float x[kElements];
      LoadChannels<kElements>(sh.decayed, buffer, my.lane, x);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) state_k[c] = Dot(s[c], x);
      LoadChannels<kElements>(sh.decayed, buffer + Shared::kChannels, my.lane, x);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) state_q[c] = Dot(s[c], x);
    }
    SyncThreads();

    const auto state_dots = [&](int c, float& of_k, float& of_q) {
      of_k = state_k[c];
      of_q = state_q[c];
    };
    const float now = ReadToken<kWave, kColumns>(args, my, token, v, beta, u, state_dots, ChannelLog(my, token, sh));
    if (!kOneToken || token.entry == kLogCapacity - 1) KeepU<kColumns>(my, token, now, sh, u);
    if (token.entry == kLogCapacity - 1) {
      float unused;
      EmptyLog<kColumns>(my, sh, u, unused);
      FoldChannels<kElements, kColumns, kExact, Base>(args, my, token, sh, s);
      if constexpr (!kOneToken) {
        if constexpr (kExact) {
          channel_log.ForEach([](float& g, int) { g = 0.0f; });
        }
        SyncThreads();  // before the next token's weights replace these
      }
    }
  }
}

// What a token of a sequence is to its log and base, for a head: a ChannelRecord. Appends the token to the log.
template <int kWave, int kElements>
__global__ __launch_bounds__(kDeltaRuleThreads) void DecodeChannelRecordKernel(DecodeArgs args, DeviceBatch batch,
                                                                               float* records) {
  BeginEarly();
  using Shared = ChannelShared<kElements, 1, true>;
  constexpr int kChannels = Shared::kChannels;
  Shared& sh = SharedMemory<Shared>();
  const DeltaRuleArgs& p = args.rule;
  const DecodeCall call = CallOf(args);
  const RecordPlace place = PlaceOf(batch, call.task.sequence);
  float* record = records + int64_t{blockIdx.x} * ChannelRecord::Floats(kChannels);
  if (threadIdx.x == 0) WritePlace(place, record);
  if (place.row < 0 || place.slot < 0) return;
  const DecodeLane my = LaneOf<1>(p, call);
  const DecodeToken token = TokenOf<1>(call.log_length, call.first, 0, p.key_dim, my.lane);
  const float beta = p.beta[token.row * p.value_heads + my.task.head];
  constexpr int kWaveGroups = kWave / kColumnLanes;
  const bool works = my.group / kWaveGroups * kWaveGroups <= token.entry;  // waves without entries do not
  float entry_k[kElements];
  if (works) {
    const float* row = KeyRow(p, my, call.first, call.log_length, min(my.group, token.entry));
    LoadFragment<kElements, true>(row, my.lane, p.key_dim, entry_k);
  }
  ChannelOfLog<kElements> channel_log = LoadChannelOfLog<kElements>(p, my, call.log_length);
  const auto token_at = [&](int channel, bool whole) { return ChannelTokenOf(p, my, token, channel, whole); };
  WeighToken<kElements>(args, my, token, channel_log, token_at, sh);
  SyncThreads();
  if (works) EntryProducts<kWave, kElements>(my, token, entry_k, sh);
  SyncThreads();
  for (int i = my.thread * 4; i < 2 * kChannels; i += kDeltaRuleThreads * 4) {
    Store4(record + ChannelRecord::kK + i, sh.decayed.Load4(i));
  }
  if (my.group == 0) {
    WriteRecord(token.entry, my.lane, 1.0f, 0.0f, beta, LaneDots(my, token, sh), sh.dots[kLogCapacity + token.entry],
                record);
  }
  if (token.entry != kLogCapacity - 1 || args.row_mask != kLogCapacity - 1) return;
  for (int i = my.thread * 4; i < kChannels; i += kDeltaRuleThreads * 4) {
    Store4(record + ChannelRecord::Decay(kChannels) + i, sh.decay.Load4(i));
  }
  for (int i = my.thread * 4; i < kLogCapacity * kChannels; i += kDeltaRuleThreads * 4) {
    Store4(record + ChannelRecord::Keys(kChannels) + i, sh.weight.Load4(i));
  }
}

// The records, then the columns.
absl::Status StreamChannels(const DeltaRuleDecodeParams& params, const DeviceBatch& batch, float* records,
                            const Stream& stream) {
  const LayerDims& dims = params.rule.pool.layout.dims();
  const DecodeArgs args = MakeDecodeArgs(params, batch, dims.value_dim, /*unwritten=*/nullptr);
  GDN_RETURN_IF_ERROR(WithWaveWidth(stream, "decode_records", [&](auto wave) -> absl::Status {
    if constexpr (wave() == 32) {
      return WithElements<16>(dims.key_dim, [&](auto elements) {
        return Launch("decode_records", DecodeChannelRecordKernel<wave(), elements()>, DecodeGrid(args, batch),
                      kDeltaRuleThreads, stream, args, batch, records);
      });
    }
    return absl::InternalError("decode_records: records by channel are for waves of 32");
  }));
  return DeltaRuleChannelStreamGpu(params, batch, records, stream);
}

// Log rows of the tokens after a call's first fold; of each row the last such token. A block a sequence and row.
__global__ __launch_bounds__(kDeltaRuleThreads) void AppendFoldedChannelLogKernel(DecodeArgs args) {
  const DeltaRuleArgs& p = args.rule;
  const int slot_index = p.slots[blockIdx.x];
  const int64_t first = p.cu_seqlens[blockIdx.x];
  const int tokens = static_cast<int>(p.cu_seqlens[blockIdx.x + 1] - first);
  const int log_length = args.log_lengths[blockIdx.x];
  const int positions = log_length + tokens;
  const int n = max(kLogCapacity, positions - kLogCapacity) + static_cast<int>(blockIdx.y);
  if (slot_index < 0 || tokens == 0 || n >= positions) return;
  float* slot = p.pool + slot_index * p.at.slot_floats;
  const int64_t row = first + n - log_length;
  const int64_t entry = n % kLogCapacity;
  const int keys = p.key_heads * p.key_dim;
  const int decays = p.value_heads * p.key_dim;
  for (int i = static_cast<int>(threadIdx.x); i < keys; i += kDeltaRuleThreads) {
    slot[p.at.log_k + entry * keys + i] = p.k[row * p.k_stride + i];
  }
  for (int i = static_cast<int>(threadIdx.x); i < decays; i += kDeltaRuleThreads) {
    slot[p.at.log_g + entry * decays + i] = p.g[row * decays + i];
  }
}

template <int kWave, int kElements, int kColumns, bool kExact, bool kOneToken, typename Base>
absl::Status LaunchDecode(const DeltaRuleDecodeParams& params, const DeviceBatch& batch, const Stream& stream) {
  const DecodeArgs args = MakeDecodeArgs(params, batch, kDeltaRuleGroups * kColumns, /*unwritten=*/nullptr);
  return Launch("delta_rule_decode", DeltaRuleChannelDecodeKernel<kWave, kElements, kColumns, kExact, kOneToken, Base>,
                DecodeGrid(args, batch), kDeltaRuleThreads, stream, args);
}

// Calls of several tokens keep a channel's log in registers, and so have the narrowest blocks.
template <int kWave, int kElements>
absl::Status LaunchDecodeOf(const DeltaRuleDecodeParams& params, const DeviceBatch& batch, const Stream& stream) {
  constexpr int kMost = kElements <= 8 ? 4 : 2;
  constexpr int kNarrowest = kElements <= 8 ? 2 : 1;
  const LayerDims& dims = params.rule.pool.layout.dims();
  const int64_t heads = int64_t{batch.sequences} * dims.value_heads;
  const int columns = ChooseColumns(kMost, heads, dims.value_dim, stream);
  return WithBaseElement(params.rule.pool.layout, [&](auto base) {
    using Base = decltype(base);
    if (batch.max_length <= 1 && ExactRule(params.rule, kElements, kDeltaRuleGroups * columns)) {
      return WithColumns<kMost>(columns, [&](auto chosen) {
        return LaunchDecode<kWave, kElements, chosen(), true, true, Base>(params, batch, stream);
      });
    }
    if (ExactRule(params.rule, kElements, kDeltaRuleGroups * kNarrowest)) {
      return LaunchDecode<kWave, kElements, kNarrowest, true, false, Base>(params, batch, stream);
    }
    return LaunchDecode<kWave, kElements, kNarrowest, false, false, Base>(params, batch, stream);
  });
}

}  // namespace

int64_t ChannelDecodeWorkspaceFloats(const DeltaRuleDecodeParams& params, const Stream& stream) {
  const StateLayout& layout = params.rule.pool.layout;
  const LayerDims& dims = layout.dims();
  if (dims.key_dim > kMostElements * kColumnLanes) return UnwrittenFloats(params);
  if (!StreamsChannels(params, stream)) return 0;
  return int64_t{params.rule.batch.sequences} * dims.value_heads * ChannelRecord::Floats(dims.key_dim);
}

absl::Status DeltaRuleChannelDecodeGpu(const DeltaRuleDecodeParams& params, const DeviceBatch& batch, float* workspace,
                                       const Stream& stream) {
  if (StreamsChannels(params, stream)) return StreamChannels(params, batch, workspace, stream);
  const int32_t key_dim = params.rule.pool.layout.dims().key_dim;
  GDN_RETURN_IF_ERROR(WithWaveWidth(stream, "delta_rule_decode", [&](auto wave) {
    if (key_dim > kMostElements * kColumnLanes) {
      return DeltaRuleChannelDecodeWideGpu(params, batch, workspace, stream);
    }
    return WithElements<kMostElements>(
        key_dim, [&](auto elements) { return LaunchDecodeOf<wave(), elements()>(params, batch, stream); });
  }));
  // One token never comes after a fold of its own call, and a draft's have been written.
  if (batch.max_length <= 1 || params.draft) return absl::OkStatus();
  return Launch("delta_rule_append_folded_log", AppendFoldedChannelLogKernel, {batch.sequences, kLogCapacity},
                kDeltaRuleThreads, stream, MakeDecodeArgs(params, batch, 1, nullptr));
}

}  // namespace gdn::gpu
