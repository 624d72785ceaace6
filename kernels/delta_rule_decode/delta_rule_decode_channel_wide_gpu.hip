// The deferred delta rule on the GPU where each key channel has a decay, for K > 256; delta_rule_decode_channel_gpu.hip
// has the formula. A column a group, which stays in memory: each token reads it. One instance serves every such K.
//
// Threads: a thread has channels, and finds the weights of two entries at a time; the groups of those take their
// products meanwhile. A lane reads and writes channels of its own in a column, so none waits for what another has
// folded. Bases of bfloat16 and drafts have their columns widened in the workspace.
// Resources: 30 KB of LDS; scalar registers are just enough (gfx906). For correctness' sake: no model has such keys.

#include "kernels/delta_rule_decode/channel_decode_gpu-inl.h"

namespace gdn::gpu {
namespace {

constexpr int kElements = kMaxHeadDim / kColumnLanes;
using Shared = ChannelShared<kElements, 1, false>;
constexpr int kPiece = kPieceEntries<kElements>;
static_assert(Shared::kBuffers == 1 && kChannelParts<kElements> == 1);

// The log's length, in a vector register as CountInVectors' numbers are. By all threads of the block.
__device__ __forceinline__ int32_t LengthInVectors(Shared& sh, int32_t log_length) {
  static_assert(kDeltaRuleThreads <= Shared::kChannels);
  const int own = static_cast<int>(threadIdx.x);
  sh.decay[own] = BitsToFloat(static_cast<uint32_t>(log_length));
  SyncThreads();
  return static_cast<int32_t>(FloatToBits(sh.decay[own]));
}

// Weights of the entries from `piece` on; with the first, and kShare, what the token is to the base.
template <bool kShare>
__device__ __forceinline__ void WeighPiece(const DecodeArgs& args, const DecodeLane& my, const DecodeCall& call,
                                           const DecodeToken& token, int piece, Shared& sh) {
  const DeltaRuleArgs& p = args.rule;
#pragma unroll 1
  for (int channel = my.thread; channel < token.key_dim; channel += kDeltaRuleThreads) {
    const float decay = WeighInMemory<1>(
        token.entry + 1, piece, piece + kPiece,
        [&](int e) { return DecayRow(p, my, call.first, call.log_length, token.since + e)[channel]; },
        [&](int e, float weight) { sh.weight[(e - piece) * Shared::kChannels + channel] = weight; });
    if (!kShare || piece != 0) continue;
    ShareToken(args, my, token, channel, true, decay, TokenKey(p, my.task, token.row)[channel],
               TokenQuery(p, my.task, token.row)[channel],
               p.g[(token.row * p.value_heads + my.task.head) * p.key_dim + channel], sh);
  }
}

// Products of the weighted keys of a piece's entries with k_t and q_t, by their groups.
template <int kWave>
__device__ __forceinline__ void EntryProducts(const DecodeLane& my, const DecodeToken& token, int piece,
                                              const float* row, Shared& sh) {
  const int entry = min(my.group, token.entry) - piece;
  const bool mine = entry >= 0 && entry < kPiece;
  WideSum part_k;
  float part_q = 0.0f;
#pragma unroll 1
  for (int channel = my.lane; channel < (mine ? token.key_dim : 0); channel += kColumnLanes) {
    const float weight = sh.weight[entry * Shared::kChannels + channel];
    const float k = sh.rows[channel];
    const float q = sh.rows[Shared::kChannels + channel];
    const float weighted = weight * row[channel];
    part_k.Add(weighted, k);
    part_q = fmaf(weighted, q, part_q);
  }
  const double parts_k[1] = {part_k.Total()};
  const float parts_q[1] = {part_q};
  const EntryDots dots{SplitProduct(SumOfLane<1, kWave>(parts_k, token.at)), SumOfLane<1, kWave>(parts_q, token.at)};
  if (mine && token.at == 0) StoreEntryDots(token, my.group, dots, sh);
}

// Fold, from `columns` to where the folded base goes, which is returned.
template <typename Base>
__device__ __forceinline__ const float* Fold(const DecodeArgs& args, const DecodeLane& my, const DecodeCall& call,
                                             const DecodeToken& token, const float* columns, float* folded,
                                             Shared& sh) {
  const DeltaRuleArgs& p = args.rule;
  const int key_dim = my.count > 0 ? token.key_dim : 0;
#pragma unroll 1
  for (int channel = my.lane; channel < key_dim; channel += kColumnLanes) {
    const float decay = sh.decay[channel];
    folded[channel] = columns[channel] * decay;
  }
#pragma unroll 1
  for (int piece = 0; piece < kLogCapacity; piece += kPiece) {
    SyncThreads();
    WeighPiece<false>(args, my, call, token, piece, sh);
    SyncThreads();
#pragma unroll 1
    for (int e = piece; e < piece + kPiece; ++e) {
      const float* key = KeyRow(p, my, call.first, call.log_length, token.since + e);
      const float u = sh.u[e * kDeltaRuleGroups + my.group];
#pragma unroll 1
      for (int channel = my.lane; channel < key_dim; channel += kColumnLanes) {
        const float weight = sh.weight[(e - piece) * Shared::kChannels + channel];
        folded[channel] = fmaf(weight * key[channel], u, folded[channel]);
      }
    }
  }
  if constexpr (kRounds<Base>) {
#pragma unroll 1
    for (int channel = my.lane; channel < key_dim; channel += kColumnLanes) {
      folded[channel] = RoundToBf16(folded[channel]);
      if (args.row_mask == kLogCapacity - 1) OwnBase<uint16_t>(p, my)[channel] = ToBf16(folded[channel]);
    }
  }
  return folded;
}

template <int kWave, typename Base>
__global__ __launch_bounds__(kDeltaRuleThreads) void DeltaRuleChannelDecodeWideKernel(DecodeArgs args) {
  BeginEarly();
  Shared& sh = SharedMemory<Shared>();
  const DeltaRuleArgs& p = args.rule;
  DecodeCall call = CallOf(args);
  if (call.tokens == 0) return;
  if (call.slot_index < 0) {
    ZeroOutput(p, call.task, kDeltaRuleGroups, call.first, call.first + call.tokens);
    return;
  }
  CountInVectors(sh, call);
  call.log_length = LengthInVectors(sh, call.log_length);
  const DecodeLane my = LaneOf<1>(p, call);
  const Base* base =
      reinterpret_cast<const Base*>(p.pool + call.base_slot * p.at.slot_floats + p.at.base) + my.column_offset;
  float* unwritten =
      args.unwritten + my.task.sequence * (int64_t{p.value_heads} * p.value_dim * p.key_dim) + my.column_offset;
  const float* columns;
  float* folded = unwritten;
  if constexpr (kRounds<Base>) {
#pragma unroll 1
    for (int i = my.lane; i < (my.count > 0 ? p.key_dim : 0); i += kColumnLanes) unwritten[i] = FromBf16(base[i]);
    columns = unwritten;
  } else {
    columns = base;
    if (args.row_mask == kLogCapacity - 1) folded = OwnBase<float>(p, my);
  }
  float u[1];  // of log entry `lane`
  LoadLogU<1, false>(my, call.log_length, u);

  for (int t = 0; t < call.tokens; ++t) {
    const int64_t row = call.first + t;
    const DecodeToken token = TokenOf<1>(call.log_length, row, t, row >= 0 ? p.key_dim : 0, row >= 0 ? my.lane : 0);
    const float v = TokenValue<false>(p, my, token);
    const float beta = p.beta[row * p.value_heads + my.task.head];
    const float* entry_row = KeyRow(p, my, call.first, call.log_length, token.since + min(my.group, token.entry));
#pragma unroll 1
    for (int piece = 0; piece <= token.entry; piece += kPiece) {
      WeighPiece<true>(args, my, call, token, piece, sh);
      SyncThreads();
      EntryProducts<kWave>(my, token, piece, entry_row, sh);
      SyncThreads();
    }
    const auto state_dots = [&](int, float& state_k, float& state_q) {
      state_k = 0.0f;
      state_q = 0.0f;
#pragma unroll 1
      for (int channel = my.lane; channel < (my.count > 0 ? p.key_dim : 0); channel += kColumnLanes) {
        const float s = columns[channel];
        const float k = sh.decayed[channel];
        const float q = sh.decayed[Shared::kChannels + channel];
        state_k = fmaf(s, k, state_k);
        state_q = fmaf(s, q, state_q);
      }
    };
    const float now = ReadToken<kWave, 1>(args, my, token, v, beta, u, state_dots, ChannelLog(my, token, sh));
    KeepU<1>(my, token, now, sh, u);
    if (token.entry == kLogCapacity - 1) {
      float unused;
      EmptyLog<1>(my, sh, u, unused);
      columns = Fold<Base>(args, my, call, token, columns, folded, sh);
    }
    SyncThreads();  // before the next token's weights replace these
  }
}

}  // namespace

absl::Status DeltaRuleChannelDecodeWideGpu(const DeltaRuleDecodeParams& params, const DeviceBatch& batch,
                                           float* workspace, const Stream& stream) {
  const DecodeArgs args = MakeDecodeArgs(params, batch, kDeltaRuleGroups, workspace);
  return WithWaveWidth(stream, "delta_rule_decode", [&](auto wave) {
    return WithBaseElement(params.rule.pool.layout, [&](auto base) {
      return Launch("delta_rule_decode", DeltaRuleChannelDecodeWideKernel<wave(), decltype(base)>,
                    DecodeGrid(args, batch), kDeltaRuleThreads, stream, args);
    });
  });
}

}  // namespace gdn::gpu
