// mixer_input's arguments on the device, and its variant before a decode of one token a sequence: a block computes q
// and k of two key heads, the gates of their value heads, and the records that the decode takes from the logs.
//
// Device code, for mixer_input_gpu.hip. Thread safety: plain values, and functions that write only memory they are
// given.
//
//   if constexpr (kHeads == Heads::kWithRecords) return HeadsAndRecords<kWave>(p, block * kRecordHeads);
#pragma once

#include <cstdint>

#include "kernels/causal_conv1d/conv_channels-inl.h"
#include "kernels/delta_rule_decode/decode_record_gpu-inl.h"
#include "kernels/gpu/gate_math.h"
#include "kernels/mixer_input/mixer_input.h"
#include "kernels/qk_l2norm/head_norm-inl.h"
#include "kernels/qkvz_split/qkvz_index-inl.h"

namespace gdn::gpu {

inline constexpr int kMixerThreads = 128;
inline constexpr int kHeadsPerBlock = kMixerThreads / kHeadLanes;
inline constexpr int kChannelsPerBlock = 4 * kMixerThreads;

struct MixerArgs {
  ConvGeometry geometry;
  QkvzIndex at;  // the identity on channels if the inputs are already split
  bool projected;
  bool negative_exp;
  // Numbers of blocks along x for each task: q and k heads, value channels, z. One more block, or gate_blocks, has
  // gates.
  int32_t head_blocks;
  int32_t value_blocks;
  int32_t z_blocks;
  const float* x;  // qkvz or mixed_qkv
  int32_t x_stride;
  const float* b;  // ba or b
  const float* a;  // ba or a
  const float* weight;
  const float* a_log;
  const float* dt_bias;
  float scale;
  float beta_scale;
  float* convolved;
  float* z;
  float* q;
  float* k;
  float* g;
  float* beta;
  // For records only: the pool, floats from slot to slot, offsets in a slot, and where records are written.
  float* pool;
  int64_t slot_floats;
  uint32_t log_k, log_g;
  int32_t group_heads;  // value heads of a key head
  float* records;
  // For gates with a value per channel or a bound: number of blocks along x, with a thread per (value head, channel).
  int32_t gate_blocks;
  int32_t decay_dim;  // 1 or K
  bool bounded;
  float lower_bound;
};

// `batch` is params.batch on the device. PlanConvTiles sets the geometry's tiles.
inline MixerArgs MakeMixerArgs(const MixerInputParams& params, const DeviceBatch& batch) {
  const LayerDims& dims = params.pool.layout.dims();
  const bool projected = params.qkvz != nullptr;
  const int32_t values = static_cast<int32_t>(dims.value_features());
  return {.geometry = MakeConvGeometry(params.pool, batch),
          .at = MakeQkvzIndex(dims, projected ? params.layout : ProjectionLayout::kFlat),
          .projected = projected,
          .negative_exp = params.a_log_convention == ALogConvention::kNegativeExp,
          .head_blocks = static_cast<int32_t>(CeilDivide(2 * dims.key_heads, kHeadsPerBlock)),
          .value_blocks = static_cast<int32_t>(CeilDivide(values, kChannelsPerBlock)),
          .z_blocks = projected ? static_cast<int32_t>(CeilDivide(values, kChannelsPerBlock)) : 0,
          .x = projected ? params.qkvz : params.mixed_qkv,
          .x_stride = static_cast<int32_t>(dims.conv_channels()) + (projected ? values : 0),
          .b = projected ? params.ba : params.b,
          .a = projected ? params.ba : params.a,
          .weight = params.conv_weight,
          .a_log = params.a_log,
          .dt_bias = params.dt_bias,
          .scale = params.scale,
          .beta_scale = params.beta_scale,
          .convolved = params.convolved,
          .z = params.z,
          .q = params.q,
          .k = params.k,
          .g = params.g,
          .beta = params.beta,
          .pool = params.pool.data,
          .slot_floats = params.pool.layout.slot_floats(),
          .log_k = static_cast<uint32_t>(params.pool.layout.log_k_offset()),
          .log_g = static_cast<uint32_t>(params.pool.layout.log_g_offset()),
          .group_heads = dims.group(),
          .records = params.records,
          .gate_blocks = static_cast<int32_t>(CeilDivide(dims.decay_features(), kMixerThreads)),
          .decay_dim = dims.decay_dim(),
          .bounded = params.decay_gate == DecayGate::kBoundedSigmoid,
          .lower_bound = params.decay_lower_bound};
}

// g and beta of one token and value head. GatesOf computes them for softplus gates with one decay a head; `row` is the
// token's in the batch.
struct TokenGates {
  float g, beta;
};
__device__ __forceinline__ TokenGates GatesOf(const MixerArgs& p, int64_t row, int32_t head) {
  const int32_t heads = p.at.value_heads;
  const float b = p.projected ? p.b[row * 2 * heads + p.at.B(head)] : p.b[row * heads + head];
  const float a = p.projected ? p.a[row * 2 * heads + p.at.A(head)] : p.a[row * heads + head];
  return {LogDecay(a, p.a_log[head], p.dt_bias[head], p.negative_exp), p.beta_scale * Sigmoid(b)};
}

__device__ __forceinline__ void StoreGates(const MixerArgs& p, int64_t row, int32_t head, const TokenGates& gates) {
  p.g[row * p.at.value_heads + head] = gates.g;
  p.beta[row * p.at.value_heads + head] = gates.beta;
}

// Number of key heads that a block that writes records handles.
inline constexpr int kRecordHeads = kHeadsPerBlock / 2;
inline constexpr int kRecordElements = 8;  // elements per lane, 16 lanes a row
inline constexpr int kRecordGroups = kMixerThreads / kColumnLanes;
inline constexpr int kGroupEntries = kLogCapacity * kRecordHeads / kRecordGroups;
struct MixerRecordShared {
  LdsArray<float, kHeadsPerBlock * kRegisterHeadDim> rows;  // q, k, q, k
  LdsArray<float, kRecordHeads * kEntryDotFloats> dots;     // EntryDots of all log entries, per head
  LdsArray<float, kRecordHeads> self;                       // k_t.q_t
};

// Loads this lane's elements of row `row` (0 .. 3: q, k of the first key head, q, k of the second) from sh.rows, spread
// over 16 lanes as LoadVectors does; elements past K are zero.
__device__ __forceinline__ void LoadShared(MixerRecordShared& sh, int row, int lane, float (&x)[kRecordElements]) {
#pragma unroll
  for (int i = 0; i < kRecordElements; i += 4) {
    Unpack4(sh.rows.Load4(row * kRegisterHeadDim + i * kColumnLanes + lane * 4), x + i);
  }
}

// Computes q and k of the kRecordHeads key heads (as far as they exist) from `first_head` on, for sequence blockIdx.z
// of a call of at most one token a sequence. Also writes the gates and records of their value heads, and stores the
// convolution inputs of q and k in the ring. All kMixerThreads threads of the block call. Needs what MixerInputGpu
// checks: W = 4, kRegisterHeadDim / 2 < K <= kRegisterHeadDim, K and V multiples of 4, tensors aligned to 16 bytes,
// softplus gates with one decay a head, and at most kRecordGroups value heads for kRecordHeads key heads.
template <int kWave>
__device__ __forceinline__ void HeadsAndRecords(const MixerArgs& p, int32_t first_head) {
  MixerRecordShared& sh = SharedMemory<MixerRecordShared>();
  const ConvGeometry& geometry = p.geometry;
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t dim = p.at.key_dim;
  const int64_t stride = p.at.KeyFeatures();
  // Roles for the convolution: kHeadLanes lanes per head of q or k.
  const int row_in_block = thread / kHeadLanes;
  const bool is_query = row_in_block % 2 == 0;
  const int32_t e = 4 * (thread % kHeadLanes);
  const int32_t key_head = first_head + row_in_block / 2;
  const bool mine = key_head < p.at.key_heads && e < dim;
  const int32_t head = (mine ? key_head : 0) + (is_query ? 0 : p.at.key_heads);
  const int32_t channel = head * dim + (mine ? e : 0);
  float* out = (is_query ? p.q : p.k) + int64_t{key_head} * dim + e;
  ConvWindow4 window;
  window.LoadTaps(p.weight + int64_t{channel} * 4);
  const float* x = p.x + p.at.Mixed(head * dim) + (mine ? e : 0);
  // Roles for reading logs: 16 lanes per kGroupEntries entries of one key head.
  const int lane = thread % kColumnLanes;
  const int group = thread / kColumnLanes;
  const int pair = group / (kRecordGroups / kRecordHeads);
  const int first_entry = group % (kRecordGroups / kRecordHeads) * kGroupEntries;
  const int32_t log_head = first_head + pair < p.at.key_heads ? first_head + pair : first_head;
  const int32_t i = static_cast<int32_t>(blockIdx.z);  // of as many as there are sequences: a loop would spill
  const ConvSequence s = SequenceAt(geometry, i, x, p.x_stride, channel);
  const RecordPlace place = PlaceOf(geometry.batch, i);
  const bool live = place.row >= 0 && place.slot >= 0;
  const float* slot = p.pool + (live ? place.slot : 0) * p.slot_floats;
  // Also loads entries that are not in use, with any contents: nothing of them is written.
  float keys[kGroupEntries][kRecordElements] = {};
  if (live && first_entry < place.entry) {
    const float* row = slot + p.log_k + first_entry * stride + int64_t{log_head} * dim;
#pragma unroll
    for (int j = 0; j < kGroupEntries; ++j) LoadVectors<kRecordElements, false>(row + j * stride, lane, dim, keys[j]);
  }
  Vec4 now{0.0f, 0.0f, 0.0f, 0.0f};
  if (live && mine) {
    now = Load4(s.x);
    window.LoadHistory(s, 0);
  }
  // A group has one value head of the two key heads, or none. Work that needs no q and k fills the wait for them.
  static_assert(kRecordHeads == 2);
  const bool writes = group < min(kRecordHeads, p.at.key_heads - first_head) * p.group_heads;
  const int32_t index = writes ? group : 0;
  const int32_t value_head = first_head * p.group_heads + index;
  const int key = index < p.group_heads ? 0 : 1;
  float* record = p.records + (int64_t{i} * p.at.value_heads + value_head) * kDecodeRecordFloats;
  const bool any = place.row >= 0;
  float lane_g = 0.0f;
  if (live && lane < place.entry) lane_g = slot[p.log_g + int64_t{lane} * p.at.value_heads + value_head];
  const TokenGates gates = any ? GatesOf(p, place.row, value_head) : TokenGates{};
  if (writes && lane == 0) {
    WritePlace(place, record);
    if (any) StoreGates(p, place.row, value_head, gates);
  }
  const float decay = DecayFactor<kWave>(place.entry, lane, lane == place.entry ? gates.g : lane_g);
  Vec4 y{0.0f, 0.0f, 0.0f, 0.0f};
  if (live && mine) {
    y = window.Step(now);
    Store4(s.ring + int64_t{s.first} * s.channels, now);
  }
  const float factor = L2NormFactor(HeadSum<kWave>(AddSquares(0.0, y)), is_query ? p.scale : 1.0f);
  y = Scale4(y, factor);
  if (mine && any) Store4(out + place.row * stride, y);
  sh.rows.Store4(row_in_block * kRegisterHeadDim + e, y);
  SyncThreads();
  float k[kRecordElements];
  float q[kRecordElements];
  LoadShared(sh, 2 * pair, lane, q);
  LoadShared(sh, 2 * pair + 1, lane, k);
  const float parts[1] = {Dot(k, q)};
  const float self = SumOfLane<1, kWave>(parts, lane);
  const EntryDots dots = DotsOfLane<kWave>(keys, k, q, lane);
  constexpr int kSharing = kColumnLanes / kGroupEntries;
  if (lane % kSharing == 0) {
    const int at = pair * kEntryDotFloats + first_entry + lane / kSharing;
    dots.Store(sh.dots, at, at + 2 * kLogCapacity);
  }
  if (first_entry == 0 && lane == 0) sh.self[pair] = self;
  SyncThreads();
  if (!live || !writes) return;
  const int at = key * kEntryDotFloats + lane;
  WriteRecord(place.entry, lane, decay, gates.g, gates.beta, EntryDots::Load(sh.dots, at, at + 2 * kLogCapacity),
              sh.self[key], record);
}

}  // namespace gdn::gpu
