// Records of what a one-token step takes from its log, computed before the state is read. There is one per (sequence,
// value head); a single load tells a wave of the streaming decode all it needs, including where its state is.
//
// Device code, for *_gpu.hip files only. Thread safety: functions write only memory they are given.
//
//   record   weight_k [16], weight_q [16], weight [16], rest_k [16]   TokenLog, by entry
//            decay, self, beta, g                                     of the token
//            row, slot, base slot, entry                              int32; row < 0: no token; slot < 0: padding
//
//   const DecodeRecord record = ReadRecord(records + index * kDecodeRecordFloats, lane);
#pragma once

#include "kernels/delta_rule_decode/delta_rule_decode_gpu-inl.h"

namespace gdn::gpu {

static_assert(kDecodeRecordFloats == 4 * kLogCapacity + 16);
inline constexpr int kRecordToken = 4 * kLogCapacity;
inline constexpr int kRecordPlace = kRecordToken + 4;

// Offsets, in floats, in a record for decays by channel, and its size (Floats). Its first kDecodeRecordFloats are as in
// a record for decays by head, with a decay of 1 and the weights multiplied into the products; rows of K floats follow.
struct ChannelRecord {
  static constexpr int64_t kK = kDecodeRecordFloats;                            // e^{G_t} k_t
  static constexpr int64_t Q(int64_t key_dim) { return kK + key_dim; }          // e^{G_t} q_t
  static constexpr int64_t Decay(int64_t key_dim) { return kK + 2 * key_dim; }  // e^{G_t}
  static constexpr int64_t Keys(int64_t key_dim) { return kK + 3 * key_dim; }  // before a fold: e^{G_t-G_e} k_e [16][K]
  static constexpr int64_t Floats(int64_t key_dim) { return Keys(key_dim) + kLogCapacity * key_dim; }
};

// Row of a sequence's token in the batch (below 0: no token), and its slot (below 0: padding). base_slot is the slot
// that its base is read from, `entry` the log entry that the token gets, 0 .. 15.
struct RecordPlace {
  int32_t row, slot, base_slot, entry;
};
// One lane's part of a record: the log entry with the lane's number (0 .. 15), and the data that all lanes share.
struct DecodeRecord {
  TokenLog log;
  float beta, g;
  RecordPlace place;
};

__device__ __forceinline__ RecordPlace PlaceOf(const DeviceBatch& batch, int32_t sequence) {
  const int32_t first = batch.cu_seqlens[sequence];
  const bool any = batch.cu_seqlens[sequence + 1] > first;
  return {any ? first : -1, batch.slots[sequence], batch.base_slots[sequence], batch.log_lengths[sequence]};
}

__device__ __forceinline__ RecordPlace ReadPlace(const float* record) {
  const Vec4 place = Load4(record + kRecordPlace);
  return {static_cast<int32_t>(FloatToBits(place.x)), static_cast<int32_t>(FloatToBits(place.y)),
          static_cast<int32_t>(FloatToBits(place.z)), static_cast<int32_t>(FloatToBits(place.w))};
}

__device__ __forceinline__ DecodeRecord ReadRecord(const float* record, int lane) {
  DecodeRecord r;
  r.place = ReadPlace(record);
  const Vec4 token = Load4(record + kRecordToken);
  r.log = {.weight = record[2 * kLogCapacity + lane],
           .weight_k = record[lane],
           .rest_k = record[3 * kLogCapacity + lane],
           .weight_q = record[kLogCapacity + lane],
           .decay = token.x,
           .self = token.y};
  r.beta = token.z;
  r.g = token.w;
  return r;
}

// Returns the dot products of one key with k and q, summed over the 16 lanes of a group. Each lane passes its own
// elements of all kEntries keys, of k and of q. Lanes [i * 16 / kEntries, (i + 1) * 16 / kEntries) of the group get the
// products of key i. Call from all 16 lanes. kEntries: a power of two, at most 16.
template <int kWave, int kElements, int kEntries>
__device__ __forceinline__ EntryDots DotsOfLane(const float (&keys)[kEntries][kElements], const float (&k)[kElements],
                                                const float (&q)[kElements], int lane) {
  double parts_k[kEntries];
  float parts_q[kEntries];
#pragma unroll
  for (int i = 0; i < kEntries; ++i) {
    parts_k[i] = WideDot(keys[i], k);
    parts_q[i] = Dot(keys[i], q);
  }
  return {SplitProduct(SumOfLane<kEntries, kWave>(parts_k, lane)), SumOfLane<kEntries, kWave>(parts_q, lane)};
}

// Writes a record's log and token data; all 16 lanes of a group call, lane e for entry e. `entry` is the token's entry,
// `factor` DecayFactor's result for the lane, `dots` the lane's entry's (ignored from `entry` on), g and beta the
// token's, `self` k_t.q_t.
__device__ __forceinline__ void WriteRecord(int entry, int lane, float factor, float g, float beta,
                                            const EntryDots& dots, float self, float* record) {
  const bool logged = lane < entry;
  const KeyProduct weighted = Weighted(factor, dots.k);
  record[lane] = logged ? weighted.nearest : 0.0f;
  record[kLogCapacity + lane] = logged ? factor * dots.q : 0.0f;
  record[2 * kLogCapacity + lane] = logged ? factor : 1.0f;
  record[3 * kLogCapacity + lane] = logged ? weighted.rest : 0.0f;
  if (lane == entry) Store4(record + kRecordToken, {factor, self, beta, g});
}

// Writes the record's row, slots and log entry, also for padding and sequences without a token. Call from one lane.
__device__ __forceinline__ void WritePlace(const RecordPlace& place, float* record) {
  Store4(record + kRecordPlace,
         {BitsToFloat(static_cast<uint32_t>(place.row)), BitsToFloat(static_cast<uint32_t>(place.slot)),
          BitsToFloat(static_cast<uint32_t>(place.base_slot)), BitsToFloat(static_cast<uint32_t>(place.entry))});
}

}  // namespace gdn::gpu
