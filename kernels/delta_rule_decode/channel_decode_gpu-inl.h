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

// A thread's part of the log, of whole rows: a channel's g of its own entries, from `low` on, and of those above them;
// zero where there are none.
template <int kElements>
struct ChannelOfLog {
  static constexpr int kOwn = kPartEntries<kElements>;
  static constexpr int kAbove = kOwn < kLogCapacity ? kLogCapacity - kOwn : 1;

  int channel, low;
  float own[kOwn];
  float above[kAbove];

  // function(g, entry) of each.
  template <typename Function>
  __device__ __forceinline__ void ForEach(const Function& function) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) function(own[i], low + i);
#pragma unroll
    for (int i = 0; i < kAbove; ++i) function(above[i], low + kOwn + i);
  }
};
template <int kElements>
__device__ __forceinline__ ChannelOfLog<kElements> LoadChannelOfLog(const DeltaRuleArgs& p, const DecodeLane& my,
                                                                    int log_length) {
  static_assert(kLaneChannels<kElements> <= kDeltaRuleThreads);
  ChannelOfLog<kElements> log;
  log.channel = my.thread % kLaneChannels<kElements>;
  log.low = my.thread / kLaneChannels<kElements> * kPartEntries<kElements>;
  const float* row = my.slot + p.at.log_g + int64_t{my.task.head} * p.key_dim + log.channel;
  const int64_t features = int64_t{p.value_heads} * p.key_dim;
  log.ForEach([&](float& g, int e) {
    g = 0.0f;
    if (e < kLogCapacity && e < log_length) g = row[e * features];
  });
  return log;
}

// A token in a channel. It has k and q only if they were asked for.
struct ChannelToken {
  float g = 0.0f, k = 0.0f, q = 0.0f;
};
// By channel: the entries' weights, and what the token is to the base. Appends the token to the log. token_at(channel,
// whole) returns the token in a channel, without k and q unless `whole`.
template <int kElements, typename TokenAt, typename Shared>
__device__ __forceinline__ void WeighToken(const DecodeArgs& args, const DecodeLane& my, const DecodeToken& token,
                                           ChannelOfLog<kElements>& log, const TokenAt& token_at, Shared& sh) {
  if (log.low > token.entry) return;
  const ChannelToken now = token_at(log.channel, log.low == 0);
  // Not a store under a condition, which the compiler would make one to an element that is found at run time.
  log.ForEach([&](float& g, int e) { g = e == token.entry ? now.g : g; });
  const float decay = WeighEntries(log.own, log.above, [&](int i, float weight) {
    sh.weight[(log.low + i) * Shared::kChannels + log.channel] = weight;
  });
  if (log.low == 0) ShareToken(args, my, token, log.channel, true, decay, now.k, now.q, now.g, sh);
}

// Products of an entry's weighted key with k_t and q_t, by its group.
template <int kWave, int kElements, typename Shared>
__device__ __forceinline__ void EntryProducts(const DecodeLane& my, const DecodeToken& token,
                                              const float (&entry_k)[kElements], Shared& sh) {
  constexpr int kChannels = Shared::kChannels;
  const int entry = min(my.group, token.entry);
  float weighted[kElements];
  LoadChannels<kElements>(sh.weight, entry * kChannels, my.lane, weighted);
#pragma unroll
  for (int i = 0; i < kElements; ++i) weighted[i] *= entry_k[i];
  float x[kElements];
  LoadChannels<kElements>(sh.rows, 0, my.lane, x);
  const double part_k = WideDot(weighted, x);
  LoadChannels<kElements>(sh.rows, kChannels, my.lane, x);
  const float part_q = Dot(weighted, x);
  ShareEntryDots<kWave>(my, token, part_k, part_q, sh);
  if (token.entry != kLogCapacity - 1) return;
#pragma unroll
  for (int i = 0; i < kElements; i += 4) {
    sh.weight.Store4(my.group * kChannels + i * kColumnLanes + my.lane * 4,
                     {weighted[i], weighted[i + 1], weighted[i + 2], weighted[i + 3]});
  }
}

// Fold, of columns in registers; a draft's base stays there, rounded as if it were written and read.
template <int kElements, int kColumns, bool kExact, typename Base, typename Shared>
__device__ __forceinline__ void FoldChannels(const DecodeArgs& args, const DecodeLane& my, const DecodeToken& token,
                                             Shared& sh, float (&s)[kColumns][kElements]) {
  DecayChannels<kElements, kColumns>(sh.decay, my.lane, s);
#pragma unroll 1
  for (int e = 0; e < kLogCapacity; ++e) {
    float weighted[kElements];
    float u[kColumns];
    LoadChannels<kElements>(sh.weight, e * Shared::kChannels, my.lane, weighted);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) u[c] = sh.u[e * Shared::kBlockColumns + my.group * kColumns + c];
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) s[c][i] = fmaf(weighted[i], u[c], s[c][i]);
    }
  }
  if constexpr (kRounds<Base>) RoundState<kElements, kColumns>(s);
  if (args.row_mask == kLogCapacity - 1) {
    StoreState<kElements, kColumns, kExact>(OwnBase<Base>(args.rule, my), my.count, my.lane, token.key_dim, s);
  }
}

}  // namespace gdn::gpu
