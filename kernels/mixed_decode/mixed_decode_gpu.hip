// A decode step of one token a sequence from the in-projections to the out-projection, in one launch:
//   split, causal conv1d + SiLU, l2norm of q and k, gates; the deferred delta rule; the gated norm
//
// Threads: a block is a (sequence, value head). First its head's q, k and v are convolved, four channels a thread, into
// LDS. Blocks that share a key head each convolve its q and k. The rest is as in delta_rule_decode_gpu.hip, whose parts
// these are, for 64 columns at a time. Outputs stay in LDS, and the first wave norms them. The first columns of the
// state are on their way while the block convolves.
// Across blocks: the ring column that a token's inputs go to is never one that a block of the launch reads, because a
// ring has at least W columns. The first value head of a key head writes those of q and k, and the log's key.
// Bits are the separate operators': the functions are theirs.
// Resources: 84 VGPRs and 8 KB of LDS at K = 128: three blocks a CU, which is at memory's limit for many heads. No
// spills (gfx906).

#include <cstdint>

#include "base/status_macros.h"
#include "kernels/mixed_decode/mixed_decode.h"
#include "kernels/mixed_decode/mixed_inputs_gpu-inl.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kColumns = kMixedColumns;

template <int kElements>
struct MixedDecodeShared {
  DecodeShared<kColumns> log;
  LdsArray<float, 2 * kColumnLanes * kElements> rows;  // q, k; zero past K
  LdsArray<float, kMostValues> v;
  LdsArray<float, kMostValues> output;
  LdsArray<float, 1> beta;
};

// GatesOf the task's token, for bounded gates too.
__device__ __forceinline__ TokenGates AnyGatesOf(const MixerArgs& p, const DecodeCall& call) {
  const int32_t heads = p.at.value_heads;
  const int32_t head = InVectors(call.task.head);
  const int32_t b_at = p.projected && p.at.interleaved ? head + call.task.key_head * p.at.group : head;  // B(head)
  const int32_t a_at = p.projected ? b_at + (p.at.interleaved ? p.at.group : heads) : head;              // A(head)
  const int64_t row = call.first * (p.projected ? 2 : 1) * heads;
  const float b = p.b[row + b_at];
  const float a = p.a[row + a_at];
  const float a_log = p.a_log[head];
  const float dt_bias = p.dt_bias[head];
  return {p.bounded ? BoundedLogDecay(a, a_log, dt_bias, p.negative_exp, p.lower_bound)
                    : LogDecay(a, a_log, dt_bias, p.negative_exp),
          p.beta_scale * Sigmoid(b)};
}

// The group's columns of the base, zero where there are none.
template <int kElements, bool kWhole, typename Base>
__device__ __forceinline__ void LoadColumnsOf(const DeltaRuleArgs& p, const DecodeCall& call, const DecodeLane& my,
                                              float (&s)[kColumns][kElements]) {
  const float* slot = p.pool + call.base_slot * p.at.slot_floats + p.at.base;
  const Base* columns = reinterpret_cast<const Base*>(slot) + my.column_offset;
  const int32_t key_dim = kWhole ? p.key_dim : InVectors(p.key_dim);
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) s[c][i] = 0.0f;
    if (my.count > 0) LoadVectors<kElements, kWhole>(columns + c * p.key_dim, my.lane, key_dim, s[c]);
  }
}

// Loads the lane's elements of the row at `at` in sh.rows.
template <int kElements>
__device__ __forceinline__ void LoadRow(MixedDecodeShared<kElements>& sh, int at, int lane, float (&x)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; i += 4) Unpack4(sh.rows.Load4(at + i * kColumnLanes + lane * 4), x + i);
}

// Folds the full log into the columns, as FoldInRegisters does. The token's key, the log's last, is only in LDS.
template <int kElements, bool kWhole, typename Base>
__device__ __forceinline__ void FoldWithToken(const DeltaRuleArgs& p, const DecodeLane& my,
                                              MixedDecodeShared<kElements>& sh, float (&s)[kColumns][kElements]) {
  const float decay = sh.log.decay[0];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) s[c][i] *= decay;
  }
  const float* keys = my.slot + p.at.log_k + int64_t{my.task.key_head} * p.key_dim;
  const int64_t stride = int64_t{p.key_heads} * p.key_dim;
  const int32_t key_dim = kWhole ? p.key_dim : InVectors(p.key_dim);
#pragma unroll 1
  for (int e = 0; e < kLogCapacity; ++e) {
    float entry_k[kElements];
    if (e < kLogCapacity - 1) {
      LoadVectors<kElements, kWhole>(keys + e * stride, my.lane, key_dim, entry_k);
    } else {
      LoadRow<kElements>(sh, kColumnLanes * kElements, my.lane, entry_k);
    }
    const float weight = sh.log.weight[e];
    float u[kColumns];
    Unpack4(sh.log.u.Load4(e * DecodeShared<kColumns>::kBlockColumns + my.group * kColumns), u);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const float weighted = weight * entry_k[i];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) s[c][i] = fmaf(weighted, u[c], s[c][i]);
    }
  }
  if constexpr (kRounds<Base>) RoundState<kElements, kColumns>(s);
  if (my.count <= 0) return;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    StoreVectors<kElements, kWhole>(OwnBase<Base>(p, my) + c * p.key_dim, my.lane, key_dim, s[c]);
  }
}

// Decodes the task's token into sh.output.
template <int kWave, int kElements, bool kWhole, typename Base>
__device__ __forceinline__ void DecodeToOutput(const MixedDecodeArgs& args, DecodeCall call,
                                               MixedDecodeShared<kElements>& sh) {
  constexpr int kSlots = kColumnLanes * kElements;
  constexpr int kShare = kSharingLanes<kColumns>;
  constexpr int kWaveGroups = kWave / kColumnLanes;
  const DeltaRuleArgs& p = args.decode.rule;
  DecodeLane my = LaneOf<kColumns>(p, call);
  float s[kColumns][kElements];
  LoadColumnsOf<kElements, kWhole, Base>(p, call, my, s);
  float g = LoadLogG<kWave>(p, my, call.log_length);
  const DecodeToken first = TokenOf<kColumns>(call.log_length, call.first, 0, p.key_dim, my.lane);
  const bool works = my.group / kWaveGroups * kWaveGroups <= first.entry;  // waves without entries have nothing to do
  if (my.thread >= kDeltaRuleThreads - kWave) {
    const TokenGates gates = AnyGatesOf(args.mixer, call);
    if (first.at == first.entry) g = gates.g;
    if (my.thread == kDeltaRuleThreads - 1) sh.beta[0] = gates.beta;
    ShareWeights<kWave>(my, first, g, sh.log);
  }
  ShareInputs<kWave, kElements>(args.mixer, call, /*q_at=*/0, /*k_at=*/kSlots, sh.rows, sh.v);
  FenceLoads();  // what follows takes the convolution's registers
  float u[kColumns];
  const auto load_u = [&] { LoadLogU<kColumns, true>(my, my.count > 0 ? call.log_length : 0, u); };
  load_u();
  float entry_k[kElements] = {};
  if (my.group < first.entry) {
    LoadVectors<kElements, kWhole>(KeyRow(p, my, call.first, call.log_length, my.group), my.lane, p.key_dim, entry_k);
  }
  SyncThreads();
  if (works) {
    float k[kElements];
    float q[kElements];
    LoadRow<kElements>(sh, 0, my.lane, q);
    LoadRow<kElements>(sh, kSlots, my.lane, k);
#pragma unroll
    for (int i = 0; i < kElements; ++i) entry_k[i] = my.group < first.entry ? entry_k[i] : k[i];
    ShareEntryDots<kWave>(my, first, WideDot(entry_k, k), Dot(entry_k, q), sh.log);
  }
  AppendRow(args.decode, my, kDeltaRuleGroups - 1, first, g, [&](float* log_k) {
    float k[kElements];
    LoadRow<kElements>(sh, kSlots, my.lane, k);
    StoreVectors<kElements, kWhole>(log_k, my.lane, p.key_dim, k);
  });
  SyncThreads();

  const TokenLog log = SharedLog(my, first, sh.log);
  const float beta = sh.beta[0];
#pragma unroll 1
  for (int column = 0;;) {
    // Anew for all columns, or masks of lanes would fill the scalar registers.
    const DecodeToken token = TokenOf<kColumns>(call.log_length, call.first, 0, p.key_dim, InVectors(my.lane));
    const float v = my.count > 0 ? static_cast<float>(sh.v[my.column + token.own]) : 0.0f;
    float state_k[kColumns];
    float state_q[kColumns];
    {
      float x[kElements];
      LoadRow<kElements>(sh, kSlots, my.lane, x);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) state_k[c] = Dot(s[c], x);
      LoadRow<kElements>(sh, 0, my.lane, x);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) state_q[c] = Dot(s[c], x);
    }
    const auto state_dots = [&](int c, float& of_k, float& of_q) {
      of_k = state_k[c];
      of_q = state_q[c];
    };
    float now;
    const float value = ReadColumns<kWave, kColumns>(token, v, beta, u, state_dots, log, now);
    if (token.at % kShare == 0 && my.count > 0) {
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
      FoldWithToken<kElements, kWhole, Base>(p, my, sh, s);
      WaveBarrier();  // before the next columns' u replace these
    }
    column += DecodeShared<kColumns>::kBlockColumns;
    if (column >= p.value_dim) return;
    call.task.column_block = InVectors(call.task.column_block + 1);
    my = LaneOf<kColumns>(p, call);
    load_u();
    LoadColumnsOf<kElements, kWhole, Base>(p, call, my, s);
  }
}

template <int kWave, int kElements, bool kWhole, typename Base>
__global__ __launch_bounds__(kDeltaRuleThreads,
                             kWave == 64 && kWhole ? 3 : 2) void MixedDecodeKernel(MixedDecodeArgs args) {
  BeginEarly();
  MixedDecodeShared<kElements>& sh = SharedMemory<MixedDecodeShared<kElements>>();
  const DecodeCall call = CallOf(args.decode);
  if (call.tokens == 0) return;
  if (call.slot_index >= 0) {
    DecodeToOutput<kWave, kElements, kWhole, Base>(args, call, sh);
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < args.norm.value_dim; i += kDeltaRuleThreads) sh.output[i] = 0.0f;
  }
  SyncThreads();
  NormOutput<kWave>(args, call, sh.output);
}

}  // namespace
}  // namespace gpu

bool TakesMixedDecodeGpu(const MixedDecodeParams& params) {
  const MixerInputParams& input = params.input;
  const LayerDims& dims = input.pool.layout.dims();
  const int32_t k = dims.key_dim, v = dims.value_dim;
  const bool shape = dims.decays_by_channel() ? (k == 64 || k == 128) && v % 64 == 0 : k % 4 == 0 && v % 4 == 0;
  return shape && k <= gpu::kRegisterHeadDim && v <= gpu::kMostValues && input.batch.max_length() <= 1 &&
         dims.conv_width == 4 && gpu::Aligned16(input.pool.data, input.qkvz, input.mixed_qkv, input.conv_weight) &&
         gpu::Aligned16(params.norm.z, params.norm.weight, params.norm.y, params.norm.terms);
}

absl::Status MixedDecodeGpu(const MixedDecodeParams& params, const gpu::DeviceBatch& batch, const gpu::Stream& stream) {
  if (batch.tokens == 0) return absl::OkStatus();
  if (stream.wave_width != 32) GDN_RETURN_IF_ERROR(RefuseTerms(params.norm));
  const StateLayout& layout = params.input.pool.layout;
  const LayerDims& dims = layout.dims();
  const gpu::MixedDecodeArgs args{gpu::MakeMixerArgs(params.input, batch),
                                  gpu::MakeDecodeArgs(params.decode, batch, dims.value_dim, /*unwritten=*/nullptr),
                                  params.norm};
  if (dims.decays_by_channel()) {
    GDN_RETURN_IF_ERROR(gpu::LaunchMixedChannelDecode(args, layout, batch, stream));
    AdvanceLogs(params.decode);
    return absl::OkStatus();
  }
  GDN_RETURN_IF_ERROR(gpu::WithWaveWidth(stream, "mixed_decode", [&](auto wave) {
    return gpu::WithElements<8>(dims.key_dim, [&](auto elements) {
      return WithBaseElement(layout, [&](auto base) {
        using Base = decltype(base);
        const auto kernel = dims.key_dim == gpu::kColumnLanes * elements()
                                ? gpu::MixedDecodeKernel<wave(), elements(), true, Base>
                                : gpu::MixedDecodeKernel<wave(), elements(), false, Base>;
        return gpu::Launch("mixed_decode", kernel, gpu::DecodeGrid(args.decode, batch), gpu::kDeltaRuleThreads, stream,
                           args);
      });
    });
  }));
  AdvanceLogs(params.decode);
  return absl::OkStatus();
}

}  // namespace gdn
