// Loads a set of columns for a wave of the streaming decode, and folds a log into the set, using records
// (decode_record_gpu-inl.h); for decays by head or by channel.
//
// Thread safety: pure functions. For *_gpu.hip files only.
//
//   ColumnSet<kElements, kColumns, Base> set;
//   LoadSet<kElements, kColumns, kWhole>(at, 0, lane, p.key_dim, logged, set);
#pragma once

#include "kernels/delta_rule_decode/decode_record_gpu-inl.h"

namespace gdn::gpu {

template <int kElements>
inline constexpr int kSetColumnsOfGroup = kElements <= 8 ? 4 : 2;
constexpr int SetColumns(int wave_width, int32_t key_dim) {
  return wave_width / kColumnLanes * (key_dim <= 8 * kColumnLanes ? kSetColumnsOfGroup<8> : kSetColumnsOfGroup<16>);
}

// The data that a lane holds of its group's kColumns columns of a set: its elements of the base, and u and v.
template <int kElements, int kColumns, typename Base>
struct ColumnSet {
  HeldColumn<kElements, Base> s[kColumns];
  float u[kColumns];  // u of log entry `lane`
  float v;            // v of the lane's own column
};

// Addresses of a lane's parts of a set: base, u and v as in ColumnSet; `target` is where its result goes, an output or
// the token's u. Later sets are a multiple of the set's columns further on.
template <typename Base>
struct SetPlace {
  const Base* base;
  const float* u;  // u of log entry `lane`
  const float* v;
  float* target;
};

template <int kElements, bool kWhole>
__device__ __forceinline__ int64_t ColumnStride(int32_t key_dim) {
  return kWhole ? kColumnLanes * kElements : key_dim;
}

template <int kElements, int kColumns, bool kWhole, typename Base>
__device__ __forceinline__ void LoadSet(const SetPlace<Base>& at, int columns_on, int lane, int32_t key_dim,
                                        bool logged, ColumnSet<kElements, kColumns, Base>& set) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    HoldColumn<kElements, kWhole>(at.base + (columns_on + c) * ColumnStride<kElements, kWhole>(key_dim), lane, key_dim,
                                  set.s[c]);
    set.u[c] = 0.0f;
  }
  if (logged) LoadColumns<kColumns, true>(at.u + columns_on, kColumns, set.u);
  set.v = at.v[columns_on];
}

// Folds a log of kLogCapacity - 1 entries and the token into the set's columns, and stores them at `columns`, the
// group's first in the base. `now` is u_t of the lane's own column, `keys` the key head's log_k of entry 0, `k` the
// token's key. All lanes of the wave call; `set` is used up.
template <int kWave, int kElements, int kColumns, bool kWhole, typename Base>
__device__ __forceinline__ void FoldSet(const DeltaRuleArgs& p, const TokenLog& log, int lane, float now,
                                        const float* keys, const float (&k)[kElements], Base* columns,
                                        ColumnSet<kElements, kColumns, float>& set) {
  constexpr int kShare = kSharingLanes<kColumns>;
  const int first = LaneId<kWave>() / kColumnLanes * kColumnLanes;  // the group's first lane in the wave
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const float latest = Bpermute<kWave>(first + 2 * kShare * c, now);
    if (lane == kLogCapacity - 1) set.u[c] = latest;
#pragma unroll
    for (int i = 0; i < kElements; ++i) set.s[c].x[i] *= log.decay;
  }
  const auto add = [&](int e, const float(&entry_k)[kElements]) {
    const float weight = Bpermute<kWave>(first + e, log.weight);
    float u[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) u[c] = Bpermute<kWave>(first + e, set.u[c]);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const float weighted = weight * entry_k[i];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) set.s[c].x[i] = fmaf(weighted, u[c], set.s[c].x[i]);
    }
  };
  constexpr int kAhead = kElements <= 8 && !kRounds<Base> ? 3 : 1;  // keys loaded at a time
  static_assert((kLogCapacity - 1) % kAhead == 0);
  const int64_t stride = int64_t{p.key_heads} * p.key_dim;
#pragma unroll 1
  for (int e = 0; e < kLogCapacity - 1; e += kAhead) {
    float entry_k[kAhead][kElements];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      LoadVectors<kElements, kWhole>(keys, lane, p.key_dim, entry_k[i]);
      keys += stride;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) add(e + i, entry_k[i]);
  }
  add(kLogCapacity - 1, k);
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    StoreVectors<kElements, kWhole>(columns + c * ColumnStride<kElements, kWhole>(p.key_dim), lane, p.key_dim,
                                    set.s[c].x);
  }
}

// FoldSet for decays by channel. The record has e^{G_L} and the weighted keys of all kLogCapacity entries, the token's
// last. K fills all lanes.
template <int kWave, int kElements, int kColumns, typename Base>
__device__ __forceinline__ void FoldChannelSet(const float* record, int lane, float now, int32_t key_dim, Base* columns,
                                               ColumnSet<kElements, kColumns, float>& set) {
  constexpr int kShare = kSharingLanes<kColumns>;
  const int first = LaneId<kWave>() / kColumnLanes * kColumnLanes;  // the group's first lane in the wave
  float decay[kElements];
  LoadVectors<kElements, true>(record + ChannelRecord::Decay(key_dim), lane, key_dim, decay);
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const float latest = Bpermute<kWave>(first + 2 * kShare * c, now);
    if (lane == kLogCapacity - 1) set.u[c] = latest;
#pragma unroll
    for (int i = 0; i < kElements; ++i) set.s[c].x[i] *= decay[i];
  }
  constexpr int kAhead = 2;  // keys loaded at a time
  const float* keys = record + ChannelRecord::Keys(key_dim);
#pragma unroll 1
  for (int e = 0; e < kLogCapacity; e += kAhead) {
    float weighted[kAhead][kElements];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      LoadVectors<kElements, true>(keys + (e + i) * key_dim, lane, key_dim, weighted[i]);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const float u = Bpermute<kWave>(first + e + i, set.u[c]);
#pragma unroll
        for (int j = 0; j < kElements; ++j) set.s[c].x[j] = fmaf(weighted[i][j], u, set.s[c].x[j]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    StoreVectors<kElements, true>(columns + c * ColumnStride<kElements, true>(key_dim), lane, key_dim, set.s[c].x);
  }
}

}  // namespace gdn::gpu
