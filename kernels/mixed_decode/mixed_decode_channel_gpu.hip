// A decode step of one token a sequence from the in-projections to the out-projection, in one launch, where each key
// channel has a decay (KDA):
//   causal conv1d + SiLU, l2norm of q and k, gates; the deferred delta rule; the gated norm
//
// Threads: a block is a (sequence, value head). First its q, k and v are convolved into LDS, as mixed_decode_gpu.hip
// does it. The rest is as in delta_rule_decode_channel_gpu.hip, whose parts these are, for 64 columns at a time. A
// thread finds its own channel's decay. Outputs stay in LDS, and the first wave norms them.
// Across blocks: as in mixed_decode_gpu.hip; each value head's block writes its own row of the log's decays.
// Bits are the separate operators': the functions are theirs.
// Resources: 19 KB of LDS at K = 128, two blocks a CU, which is at memory's limit for many heads. No spills (gfx906).

#include <cstdint>

#include "kernels/delta_rule_decode/channel_decode_gpu-inl.h"
#include "kernels/mixed_decode/mixed_inputs_gpu-inl.h"

namespace gdn::gpu {
namespace {

constexpr int kColumns = kMixedColumns;

template <int kElements>
struct MixedChannelShared {
  using Log = ChannelShared<kElements, kColumns, /*kOneToken=*/true>;
  Log log;  // its rows are k, then q
  LdsArray<float, kMostValues> v;
  LdsArray<float, kMostValues> output;
};

// The token's log decay in a channel of the task's head.
__device__ __forceinline__ float LogDecayOf(const MixerArgs& p, const DecodeCall& call, int channel) {
  const int32_t features = p.at.value_heads * p.decay_dim;
  const int32_t feature = call.task.head * p.decay_dim + channel;
  const float a = p.a[call.first * features + feature];
  const float a_log = p.a_log[call.task.head];
  const float dt_bias = p.dt_bias[feature];
  return p.bounded ? BoundedLogDecay(a, a_log, dt_bias, p.negative_exp, p.lower_bound)
                   : LogDecay(a, a_log, dt_bias, p.negative_exp);
}

// Decodes the task's token into sh.output.
template <int kWave, int kElements, typename Base>
__device__ __forceinline__ void DecodeToOutput(const MixedDecodeArgs& args, DecodeCall call,
                                               MixedChannelShared<kElements>& sh) {
  constexpr int kChannels = MixedChannelShared<kElements>::Log::kChannels;
  constexpr int kShare = kSharingLanes<kColumns>;
  constexpr int kWaveGroups = kWave / kColumnLanes;
  const DeltaRuleArgs& p = args.decode.rule;
  const MixerArgs& mixer = args.mixer;
  DecodeLane my = LaneOf<kColumns>(p, call);
  float s[kColumns][kElements];
  const auto load_state = [&] {
    const float* slot = p.pool + call.base_slot * p.at.slot_floats + p.at.base;
    LoadState<kElements, kColumns, true>(reinterpret_cast<const Base*>(slot) + my.column_offset, my.count, my.lane,
                                         p.key_dim, s);
  };
  load_state();
  ShareInputs<kWave, kElements>(mixer, call, /*q_at=*/kChannels, /*k_at=*/0, sh.log.rows, sh.v);
  FenceLoads();  // what follows takes the convolution's registers
  float u[kColumns];
  LoadLogU<kColumns, true>(my, call.log_length, u);
  ChannelOfLog<kElements> channel_log = LoadChannelOfLog<kElements>(p, my, call.log_length);
  const DecodeToken token = TokenOf<kColumns>(call.log_length, call.first, 0, p.key_dim, my.lane);
  const bool works = my.group / kWaveGroups * kWaveGroups <= token.entry;  // waves without entries do not
  float entry_k[kElements] = {};
  if (my.group < token.entry) {
    LoadFragment<kElements, true>(KeyRow(p, my, call.first, call.log_length, my.group), my.lane, p.key_dim, entry_k);
  }
  const float beta = mixer.beta_scale * Sigmoid(mixer.b[call.first * mixer.at.value_heads + call.task.head]);
  SyncThreads();
  const auto token_at = [&](int channel, bool whole) {
    ChannelToken now;
    now.g = LogDecayOf(mixer, call, channel);
    if (whole) {
      now.k = sh.log.rows[channel];
      now.q = sh.log.rows[kChannels + channel];
    }
    return now;
  };
  WeighToken<kElements>(args.decode, my, token, channel_log, token_at, sh.log);
  SyncThreads();
  if (works) {
    if (my.group >= token.entry) LoadChannels<kElements>(sh.log.rows, 0, my.lane, entry_k);
    EntryProducts<kWave, kElements>(my, token, entry_k, sh.log);
  }
  SyncThreads();

  const TokenLog log = ChannelLog(my, token, sh.log);
#pragma unroll 1
  for (int column = 0;;) {
    float state_k[kColumns];
    float state_q[kColumns];
    {
      float x[kElements];
      LoadChannels<kElements>(sh.log.decayed, 0, my.lane, x);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) state_k[c] = Dot(s[c], x);
      LoadChannels<kElements>(sh.log.decayed, kChannels, my.lane, x);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) state_q[c] = Dot(s[c], x);
    }
    const auto state_dots = [&](int c, float& of_k, float& of_q) {
      of_k = state_k[c];
      of_q = state_q[c];
    };
    float now;
    const float value = ReadColumns<kWave, kColumns>(token, static_cast<float>(sh.v[my.column + token.own]), beta, u,
                                                     state_dots, log, now);
    if (token.at % kShare == 0) {
      if (token.reads) {
        sh.output[my.column + token.own] = value;
      } else {
        my.log_u[(token.n & args.decode.row_mask) * my.u_stride + token.own] = value;
      }
    }
    if (token.entry == kLogCapacity - 1 && args.decode.row_mask == kLogCapacity - 1) {  // a draft folds nothing
      KeepU<kColumns>(my, token, now, sh.log, u);
      float unused;
      EmptyLog<kColumns>(my, sh.log, u, unused);
      FoldChannels<kElements, kColumns, true, Base>(args.decode, my, token, sh.log, s);
      WaveBarrier();  // before the next columns' u replace these
    }
    column += kDeltaRuleGroups * kColumns;
    if (column >= p.value_dim) return;
    ++call.task.column_block;
    my = LaneOf<kColumns>(p, call);
    LoadLogU<kColumns, true>(my, call.log_length, u);
    load_state();
  }
}

template <int kWave, int kElements, typename Base>
__global__ __launch_bounds__(kDeltaRuleThreads, 2) void MixedChannelDecodeKernel(MixedDecodeArgs args) {
  BeginEarly();
  auto& sh = SharedMemory<MixedChannelShared<kElements>>();
  const DecodeCall call = CallOf(args.decode);
  if (call.tokens == 0) return;
  if (call.slot_index >= 0) {
    DecodeToOutput<kWave, kElements, Base>(args, call, sh);
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < args.norm.value_dim; i += kDeltaRuleThreads) sh.output[i] = 0.0f;
  }
  SyncThreads();
  NormOutput<kWave>(args, call, sh.output);
}

}  // namespace

absl::Status LaunchMixedChannelDecode(const MixedDecodeArgs& args, const StateLayout& layout, const DeviceBatch& batch,
                                      const Stream& stream) {
  return WithWaveWidth(stream, "mixed_decode", [&](auto wave) {
    return WithElements<8>(layout.dims().key_dim, [&](auto elements) {
      return WithBaseElement(layout, [&](auto base) {
        return Launch("mixed_decode", MixedChannelDecodeKernel<wave(), elements(), decltype(base)>,
                      DecodeGrid(args.decode, batch), kDeltaRuleThreads, stream, args);
      });
    });
  });
}

}  // namespace gdn::gpu
