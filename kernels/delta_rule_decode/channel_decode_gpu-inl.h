// Shared by the decode kernels for decays by key channel: LDS layout, rows of log decays, sharing of a token's data
// with all groups. delta_rule_decode_channel_gpu.hip keeps columns and a channel's log decays in registers,
// delta_rule_decode_channel_wide_gpu.hip in memory.
//
// Thread safety: pure functions. For *_gpu.hip files only.
//
//   ShareToken(args, my, token, channel, inside, decay, k, q, g, sh);
//   SyncThreads();
//   const TokenLog log = ChannelLog(my, token, sh);
#pragma once

#include "kernels/delta_rule_decode/channel_log_gpu-inl.h"
#include "kernels/delta_rule_decode/delta_rule_decode_gpu-inl.h"

namespace gdn::gpu {

template <int kElements, int kColumns, bool kOneToken>
struct ChannelShared {
  static constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  static constexpr int kChannels = kLaneChannels<kElements>;
  // Two buffers, because a fast wave may be a token ahead; long keys use one, to save LDS, and all waves wait.
  static constexpr int kBuffers = kOneToken || kPieceEntries<kElements> < kLogCapacity ? 1 : 2;

  LdsArray<float, kPieceEntries<kElements> * kChannels> weight;  // e^{G_t-G_e}; before a fold, multiplied by k_e
  LdsArray<float, 2 * kChannels> rows;                           // k_t, q_t
  LdsArray<float, 2 * kBuffers * kChannels> decayed;             // e^{G_t} k_t, e^{G_t} q_t
  LdsArray<float, kChannels> decay;                              // e^{G_t}
  LdsArray<float, 2 * kEntryDotFloats> dots;                     // as DecodeShared's, with the weights multiplied in
  LdsArray<float, kLogCapacity * kBlockColumns> u;               // to exchange between lanes, and for a fold
  LdsArray<int32_t, 2 * kColumnLanes> call;                      // per lane: first row of the sequence, then its slot
};

// Copies the call's first row and slot through LDS and back, each lane by its own element. So values derived from them
// are in vector registers; there are not enough scalar ones. The values do not change. Call from all threads of the
// block.
template <typename Shared>
__device__ __forceinline__ void CountInVectors(Shared& sh, DecodeCall& call) {
  const int lane = static_cast<int>(threadIdx.x) % kColumnLanes;
  if (static_cast<int>(threadIdx.x) < kColumnLanes) {
    sh.call[lane] = static_cast<int32_t>(call.first);
    sh.call[kColumnLanes + lane] = call.slot_index;
  }
  SyncThreads();
  const int32_t first = sh.call[lane];
  call.first = first;
  call.slot_index = sh.call[kColumnLanes + lane];
}

// Returns the log decays g [K], for the task's value head, of the token at position n (counted since the log was last
// empty). Positions below log_length are in the slot's log, others in the call, whose first row is `first`.
__device__ __forceinline__ const float* DecayRow(const DeltaRuleArgs& p, const DecodeLane& my, int64_t first,
                                                 int log_length, int n) {
  const int64_t features = int64_t{p.value_heads} * p.key_dim;
  const float* row = n < log_length ? my.slot + p.at.log_g + n * features : p.g + (first + n - log_length) * features;
  return row + int64_t{my.task.head} * p.key_dim;
}

// Puts a token's data of key channel `channel` into LDS for all groups; `decay` is e^{G_t}. Channels from K on
// (`inside` false) are put there too, with k and q 0, for groups that read whole fragments. Then the first column block
// of a value head writes g, and that of a key head's first value head also k, to the token's row of the log, which no
// block reads. Nothing is written to the log if `inside` is false, or if the token follows a fold and the call is no
// draft.
template <typename Shared>
__device__ __forceinline__ void ShareToken(const DecodeArgs& args, const DecodeLane& my, const DecodeToken& token,
                                           int channel, bool inside, float decay, float k, float q, float g,
                                           Shared& sh) {
  const DeltaRuleArgs& p = args.rule;
  constexpr int kChannels = Shared::kChannels;
  const int buffer = token.t % Shared::kBuffers * 2 * kChannels;
  sh.rows[channel] = k;
  sh.rows[kChannels + channel] = q;
  sh.decayed[buffer + channel] = decay * k;
  sh.decayed[buffer + kChannels + channel] = decay * q;
  sh.decay[channel] = decay;
  if (!inside || token.n > args.row_mask || my.task.column_block != 0) return;
  const int64_t features = int64_t{p.value_heads} * p.key_dim;
  my.slot[p.at.log_g + token.n * features + int64_t{my.task.head} * p.key_dim + channel] = g;
  if (my.task.head != my.task.key_head * p.group) return;
  my.slot[p.at.log_k + (int64_t{token.n} * p.key_heads + my.task.key_head) * p.key_dim + channel] = k;
}

// Returns the lane's entry of the log as the token sees it. The decays are already in the products, so weight and decay
// are 1. Call after a barrier behind the writes of sh.dots.
template <typename Shared>
__device__ __forceinline__ TokenLog ChannelLog(const DecodeLane& my, const DecodeToken& token, Shared& sh) {
  const EntryDots dots = LaneDots(my, token, sh);
  TokenLog log;
  log.weight = 1.0f;
  log.weight_k = dots.k.nearest;
  log.rest_k = dots.k.rest;
  log.weight_q = dots.q;
  log.decay = 1.0f;
  log.self = sh.dots[2 * token.buffer + kLogCapacity + token.entry];
  return log;
}

}  // namespace gdn::gpu
