// The decode log on the GPU for decays by key channel: e^{G_n-G_e} is a row of K weights per entry, in LDS by channel.
// Shared by the decode step and MaterializeStateGpu, so that a state folded by either has the same bits.
//
// Each channel belongs to a thread. It sums the channel's log decays from the newest entry backwards, in double, and
// takes the exponential of the sum above an entry before it adds the entry's own. No exponent is positive. Logged keys
// are not changed, because a draft may still be dropped.
// Thread safety: pure functions. For *_gpu.hip files only.
//
//   ForEachChannel<kElements>(thread, [&](int channel, int part) {
//     decay = WeighInMemory(entries, part * kPer, (part + 1) * kPer, g_at, keep);
//   });
#pragma once

#include "kernels/delta_rule_decode/delta_rule_log_gpu-inl.h"

namespace gdn::gpu {

template <int kElements>
inline constexpr int kLaneChannels = kColumnLanes* kElements;
// Number of log entries whose weights are in LDS at a time: all 16, but 2 for keys above 256 elements.
template <int kElements>
inline constexpr int kPieceEntries = kElements <= 16 ? kLogCapacity : 2;
// Number of threads that share a channel; each takes kPartEntries of the entries.
template <int kElements>
inline constexpr int kChannelParts =
    kLaneChannels<kElements> < kDeltaRuleThreads ? kDeltaRuleThreads / kLaneChannels<kElements> : 1;
template <int kElements>
inline constexpr int kPartEntries = kPieceEntries<kElements> / kChannelParts<kElements>;

// Calls body(channel, part) for each of this thread's channels; `part` says which of the channel's kChannelParts
// threads it is. Channels run to kLaneChannels, so those past K are assigned to threads too.
template <int kElements, typename Body>
__device__ __forceinline__ void ForEachChannel(int thread, const Body& body) {
  constexpr int kChannels = kLaneChannels<kElements>;
  if constexpr (kChannels <= kDeltaRuleThreads) {
    body(thread % kChannels, thread / kChannels);
  } else {
#pragma unroll 1
    for (int channel = thread; channel < kChannels; channel += kDeltaRuleThreads) body(channel, 0);
  }
}

// Calls keep(i, e^{G_n-G_e}) for kOwn neighbouring log entries e = first + i. n is the number of entries; the results
// for e >= n are 1. `own`: g of these entries, `above`: g of all later ones; both are zero from entry n on. Returns
// e^{G_n-G_{first-1}}, which is e^{G_n} for the log's first entries. Has no branches, so that all exponentials overlap.
template <int kOwn, int kAbove, typename Keep>
__device__ __forceinline__ float WeighEntries(const float (&own)[kOwn], const float (&above)[kAbove],
                                              const Keep& keep) {
  double sum = 0.0;
#pragma unroll
  for (int i = kAbove - 1; i >= 0; --i) sum += static_cast<double>(above[i]);
  float exponents[kOwn];
#pragma unroll
  for (int i = kOwn - 1; i >= 0; --i) {
    exponents[i] = static_cast<float>(sum);
    sum += static_cast<double>(own[i]);
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) keep(i, expf(exponents[i]));
  return expf(static_cast<float>(sum));
}

// Calls keep(e, e^{G_n-G_e}) for the entries e in [low, high) that a log of n = `entries` entries has, newest first,
// and returns e^{G_n-G_{low-1}}. The order of sums is that of WeighEntries. g_at(e) reads g from memory, kAhead loads
// at a time.
template <int kAhead = 4, typename GAt, typename Keep>
__device__ __forceinline__ float WeighInMemory(int entries, int low, int high, const GAt& g_at, const Keep& keep) {
  double sum = 0.0;
#pragma unroll 1
  for (int newest = entries - 1; newest >= low; newest -= kAhead) {
    float g[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) g[i] = newest - i >= low ? g_at(newest - i) : 0.0f;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int e = newest - i;
      if (e >= low && e < high) keep(e, expf(static_cast<float>(sum)));
      sum += static_cast<double>(g[i]);
    }
  }
  return expf(static_cast<float>(sum));
}

// Loads this lane's kElements elements of the row of channels that starts at `at` in LDS, spread as in LoadFragment.
template <int kElements, typename Rows>
__device__ __forceinline__ void LoadChannels(Rows& rows, int at, int lane, float (&x)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; i += 4) Unpack4(rows.Load4(at + i * kColumnLanes + lane * 4), x + i);
}

// s <- diag(decay) s for this lane's elements; `decay` is a row of kLaneChannels factors e^{G_n} in LDS.
template <int kElements, int kColumns, typename Decay>
__device__ __forceinline__ void DecayChannels(Decay& decay, int lane, float (&s)[kColumns][kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; i += 4) {
    float d[4];
    Unpack4(decay.Load4(i * kColumnLanes + lane * 4), d);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) s[c][i + j] *= d[j];
    }
  }
}

// s <- s + sum (w_e k_e) u_e^T over entries e < `entries`, in order for each element. Entry e's weights w_e are row e,
// of kLaneChannels floats, in LDS. key_row(e) returns k_e [K], u_at(e, u) loads u_e of the columns into `u`.
template <int kElements, int kColumns, bool kExact, typename Weights, typename KeyRow, typename UAt>
__device__ __forceinline__ void FoldWeighted(Weights& weights, int entries, int lane, int key_dim, KeyRow key_row,
                                             UAt u_at, float (&s)[kColumns][kElements]) {
  constexpr int kPiece = kElements <= 16 ? kElements : 4;
#pragma unroll
  for (int piece = 0; piece < kElements; piece += kPiece) {
#pragma unroll 1
    for (int e = 0; e < entries; ++e) {
      float k[kPiece];
      float w[kPiece];
      float u[kColumns];
      if constexpr (kPiece == kElements) {
        LoadFragment<kElements, kExact>(key_row(e), lane, key_dim, k);
      } else {
        LoadPiece<kPiece, kExact>(key_row(e) + piece * kColumnLanes, lane, key_dim - piece * kColumnLanes, k);
      }
      LoadChannels<kPiece>(weights, e * kLaneChannels<kElements> + piece * kColumnLanes, lane, w);
      u_at(e, u);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        const float weighted = w[i] * k[i];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) s[c][piece + i] = fmaf(weighted, u[c], s[c][piece + i]);
      }
    }
  }
}

}  // namespace gdn::gpu
