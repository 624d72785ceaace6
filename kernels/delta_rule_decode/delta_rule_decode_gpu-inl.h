// The steps of a decode kernel on the GPU, in the order in which a block takes them for each token: entry dots,
// weights, the token from state and log, append, fold. delta_rule_decode_gpu.hip has the formula; its kernel keeps
// columns of up to 256 elements in registers. The kernel of delta_rule_decode_wide_gpu.hip handles longer ones with the
// same bits.
//
// Thread safety: pure functions. For *_gpu.hip files only.
//
//   const DecodeToken token = TokenOf<kColumns>(log_length, row, t, p.key_dim, my.lane);
//   FindWeights<kWave>(p, my, token, sh, g);
//   SyncThreads();
//   const float now = ReadToken<kWave, kColumns>(args, my, token, v, beta, u, state_dots, SharedLog(my, token, sh));
#pragma once

#include <limits>

#include "kernels/delta_rule_decode/delta_rule_decode.h"
#include "kernels/delta_rule_decode/delta_rule_log_gpu-inl.h"

namespace gdn::gpu {

static_assert(kLogCapacity == kColumnLanes, "a lane keeps one log entry's u");
static_assert(kLogCapacity == kDeltaRuleGroups, "a group computes one log entry's dot products");

struct DecodeArgs {
  DeltaRuleArgs rule;
  const int32_t* log_lengths;  // [sequences], before the call
  const int32_t* base_slots;   // [sequences], slots that bases are read from
  // [sequences, HV, V, K], for kernels that keep columns in memory: float32 copies of the bases, if these may not be
  // written (a draft) or are bfloat16. Unused if UnwrittenFloats is 0, or if columns are in registers.
  float* unwritten;
  int32_t row_mask;  // token n goes to log row n & row_mask: L - 1, or all ones for a draft
};

// Returns the number of floats in DecodeArgs::unwritten that a kernel needs that keeps columns in memory; 0 if it may
// write the bases.
inline int64_t UnwrittenFloats(const DeltaRuleDecodeParams& params) {
  const StateLayout& layout = params.rule.pool.layout;
  const bool elsewhere = params.draft || layout.base_dtype() != DType::kF32;
  return elsewhere ? params.rule.batch.sequences * layout.dims().state_elements() : 0;
}

inline DecodeArgs MakeDecodeArgs(const DeltaRuleDecodeParams& params, const DeviceBatch& batch, int block_columns,
                                 float* unwritten) {
  return {MakeDeltaRuleArgs(params.rule, batch, block_columns), batch.log_lengths, batch.base_slots, unwritten,
          params.draft ? std::numeric_limits<int32_t>::max() : kLogCapacity - 1};
}

inline Grid DecodeGrid(const DecodeArgs& args, const DeviceBatch& batch) {
  return {.x = int64_t{batch.sequences} * args.rule.value_heads * args.rule.column_blocks, .early = true};
}

// Launches the decode for K above 256: one value column per group, in registers if K fills the lanes, else in memory.
// `workspace` has UnwrittenFloats(params) floats on the device.
absl::Status DeltaRuleDecodeWideGpu(const DeltaRuleDecodeParams& params, const DeviceBatch& batch, float* workspace,
                                    const Stream& stream);

// Launches the decode of at most one token a sequence, which uses params.records (decode_record_gpu-inl.h). If that is
// null, it first computes records in `workspace`, DecodeRecordFloatsGpu floats on the device.
absl::Status DeltaRuleDecodeStreamGpu(const DeltaRuleDecodeParams& params, const DeviceBatch& batch, float* workspace,
                                      const Stream& stream);

// DeltaRuleChannelDecodeGpu launches the decode for dims that decay by channel (delta_rule_decode_channel_gpu.hip), and
// also writes log rows that follow a fold. `workspace` has ChannelDecodeWorkspaceFloats floats on the device. If
// StreamsChannels (one token a sequence, many heads, waves of 32 lanes, whole rows), it computes records there first
// and passes them to DeltaRuleChannelStreamGpu (delta_rule_decode_stream_gpu.hip).
int64_t ChannelDecodeWorkspaceFloats(const DeltaRuleDecodeParams& params, const Stream& stream);
absl::Status DeltaRuleChannelDecodeGpu(const DeltaRuleDecodeParams& params, const DeviceBatch& batch, float* workspace,
                                       const Stream& stream);
// Launches the decode for K above 256 with decays by channel. `workspace` as for DeltaRuleDecodeWideGpu.
absl::Status DeltaRuleChannelDecodeWideGpu(const DeltaRuleDecodeParams& params, const DeviceBatch& batch,
                                           float* workspace, const Stream& stream);
bool StreamsChannels(const DeltaRuleDecodeParams& params, const Stream& stream);
absl::Status DeltaRuleChannelStreamGpu(const DeltaRuleDecodeParams& params, const DeviceBatch& batch,
                                       const float* records, const Stream& stream);

template <int kColumns>
struct DecodeShared {
  static constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  // Data of a token, by entry. There are two buffers, because a fast wave may be a token ahead.
  LdsArray<float, 2 * kLogCapacity> weight;         // e^{G_t-G_e}
  LdsArray<float, 2 * kEntryDotFloats> dots;        // EntryDots of all entries
  LdsArray<int32_t, 1> first;                       // first row of the sequence
  LdsArray<float, 2> decay;                         // e^{G_t}
  LdsArray<float, kLogCapacity * kBlockColumns> u;  // to exchange between lanes, and for a fold
};

// A thread block's task, and its sequence's data in the call: rows, tokens, slot, log length before the call, and the
// slot that bases are read from. Negative slot_index: padding.
struct DecodeCall {
  BlockTask task;
  int64_t first;  // first row of the sequence
  int tokens, slot_index, log_length, base_slot;
};
__device__ __forceinline__ DecodeCall CallOf(const DecodeArgs& args) {
  const DeltaRuleArgs& p = args.rule;
  DecodeCall call;
  call.task = TaskOf(p);
  call.first = p.cu_seqlens[call.task.sequence];
  call.tokens = static_cast<int>(p.cu_seqlens[call.task.sequence + 1] - call.first);
  call.slot_index = p.slots[call.task.sequence];
  call.log_length = args.log_lengths[call.task.sequence];
  call.base_slot = args.base_slots[call.task.sequence];
  return call;
}

// A lane (0 .. 15 in its group), its group in the block, and the group's value columns: kColumns from `column` on, of
// which `count` exist (0 or less: none; it may exceed kColumns).
struct DecodeLane {
  BlockTask task;
  int thread, lane, group, column, count;
  float* slot;
  int64_t column_offset;  // offset of the group's columns in a slot's base, in elements
  float* log_u;           // u of the columns; entries are u_stride apart
  float* log_g;
  int64_t u_stride;
};
template <int kColumns>
__device__ __forceinline__ DecodeLane LaneOf(const DeltaRuleArgs& p, const DecodeCall& call) {
  DecodeLane my;
  my.task = call.task;
  my.thread = static_cast<int>(threadIdx.x);
  my.lane = my.thread % kColumnLanes;
  my.group = my.thread / kColumnLanes;
  my.column = call.task.column_block * (kDeltaRuleGroups * kColumns) + my.group * kColumns;
  my.count = p.value_dim - my.column;
  my.slot = p.pool + call.slot_index * p.at.slot_floats;
  my.column_offset = (int64_t{call.task.head} * p.value_dim + my.column) * p.key_dim;
  my.log_u = my.slot + p.at.log_u + int64_t{call.task.head} * p.value_dim + my.column;
  my.log_g = my.slot + p.at.log_g + call.task.head;
  my.u_stride = int64_t{p.value_heads} * p.value_dim;
  return my;
}

// Loads u of log entry my.lane for the group's columns; zeros if the log has no such entry.
template <int kColumns, bool kExact>
__device__ __forceinline__ void LoadLogU(const DecodeLane& my, int log_length, float (&u)[kColumns]) {
  if constexpr (kExact) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) u[c] = 0.0f;
    if (my.lane < log_length) LoadColumns<kColumns, true>(my.log_u + my.lane * my.u_stride, my.count, u);
  } else {
    LoadColumns<kColumns, false>(my.log_u + my.lane * my.u_stride, my.lane < log_length ? my.count : 0, u);
  }
}

// Returns g of log entry my.lane and the task's value head, 0 if the log has no such entry. Only the block's last wave
// loads it, others get 0: that wave finds the weights for all groups (FindWeights), while the others continue with the
// dot products.
template <int kWave>
__device__ __forceinline__ float LoadLogG(const DeltaRuleArgs& p, const DecodeLane& my, int log_length) {
  return my.thread >= kDeltaRuleThreads - kWave && my.lane < log_length ? my.log_g[int64_t{my.lane} * p.value_heads]
                                                                        : 0.0f;
}

// Number of neighbouring lanes that hold the same sum after SumOfLane of 2 kColumns values. Each lane then has S0^T k
// or S0^T q of one of its group's kColumns columns.
template <int kColumns>
inline constexpr int kSharingLanes = kColumnLanes / (2 * kColumns);

// A token of a sequence, and what a lane does for it. `t` is its number in the call from 0, `row` its row in the batch.
// Its position n counts tokens since the log was last empty; `entry` is n mod L.
struct DecodeToken {
  int t, n, entry;
  int since;   // position of the log's first entry
  int buffer;  // offset of the token's data in sh.weight: 0 or L, for even and odd t
  int64_t row;
  int key_dim;
  int at;      // the lane's number within the group
  int own;     // the lane's column within the group
  bool reads;  // true: the lane has the sums with q; false: with k
};
template <int kColumns>
__device__ __forceinline__ DecodeToken TokenOf(int log_length, int64_t row, int t, int key_dim, int at) {
  DecodeToken token;
  token.t = t;
  token.n = log_length + t;
  token.entry = token.n % kLogCapacity;
  token.since = token.n - token.entry;
  token.buffer = t % 2 * kLogCapacity;
  token.row = row;
  token.key_dim = key_dim;
  token.at = at;
  token.own = at / (2 * kSharingLanes<kColumns>);
  token.reads = (at / kSharingLanes<kColumns>) % 2 == 1;
  return token;
}

__device__ __forceinline__ const float* TokenKey(const DeltaRuleArgs& p, const BlockTask& task, int64_t row) {
  return p.k + row * p.k_stride + int64_t{task.key_head} * p.key_dim;
}
__device__ __forceinline__ const float* TokenQuery(const DeltaRuleArgs& p, const BlockTask& task, int64_t row) {
  return p.q + row * p.q_stride + int64_t{task.key_head} * p.key_dim;
}
template <bool kExact>
__device__ __forceinline__ float TokenValue(const DeltaRuleArgs& p, const DecodeLane& my, const DecodeToken& token) {
  return kExact || token.own < my.count
             ? p.v[token.row * p.v_stride + int64_t{my.task.head} * p.value_dim + my.column + token.own]
             : 0.0f;
}

// Returns the key [K], for the task's key head, of the token at position n (counted since the log was last empty).
// Positions below log_length are in the slot's log, others in the call, whose first row is `first`.
__device__ __forceinline__ const float* KeyRow(const DeltaRuleArgs& p, const DecodeLane& my, int64_t first,
                                               int log_length, int n) {
  const int64_t offset = int64_t{my.task.key_head} * p.key_dim;
  return n < log_length ? my.slot + p.at.log_k + int64_t{n} * p.key_heads * p.key_dim + offset
                        : p.k + (first + n - log_length) * p.k_stride + offset;
}

// Stores the dots of log entry `entry` in sh.dots, in the token's buffer: the products of both buffers first, then the
// rests of those with k.
template <typename Shared>
__device__ __forceinline__ void StoreEntryDots(const DecodeToken& token, int entry, const EntryDots& dots, Shared& sh) {
  dots.Store(sh.dots, 2 * token.buffer + entry, 4 * kLogCapacity + token.buffer + entry);
}

// Sums the lanes' parts of k_e.k_t and k_e.q_t over a group, and puts the sums into LDS for all groups. Group e does so
// for log entry e; call from all lanes of the block.
template <int kWave, typename Shared>
__device__ __forceinline__ void ShareEntryDots(const DecodeLane& my, const DecodeToken& token, double part_k,
                                               float part_q, Shared& sh) {
  const double parts_k[1] = {part_k};
  const float parts_q[1] = {part_q};
  const EntryDots dots{SplitProduct(SumOfLane<1, kWave>(parts_k, token.at)), SumOfLane<1, kWave>(parts_q, token.at)};
  if (token.at == 0) StoreEntryDots(token, my.group, dots, sh);
}

// Returns e^{G_t-G_e} for the lane's entry e, whose g the lane has. Lane `entry` has the token's g; it and the lanes
// above, whose g must be 0, return e^{G_t}. All lanes of the wave call. Sums in double, in an order that does not
// depend on the token's position in the call.
template <int kWave>
__device__ __forceinline__ float DecayFactor(int entry, int lane, float g) {
  const int first = LaneId<kWave>() / kColumnLanes * kColumnLanes;
  const int after = lane < entry ? lane : -1;
  double sum = 0.0;
#pragma unroll 1
  for (int few = 0; few <= entry; few += 4) {
#pragma unroll
    for (int e = few; e < few + 4; ++e) {
      const float entry_g = Bpermute<kWave>(first + e, g);  // zero past `entry`
      sum += e > after ? static_cast<double>(entry_g) : 0.0;
    }
  }
  return expf(static_cast<float>(sum));
}

// Computes the weights e^{G_t-G_e} of all log entries, and e^{G_t}, and puts them into LDS. The block's last wave
// calls, with each lane's entry's g, the token's among them.
template <int kWave, typename Shared>
__device__ __forceinline__ void ShareWeights(const DecodeLane& my, const DecodeToken& token, float g, Shared& sh) {
  const float factor = DecayFactor<kWave>(token.entry, token.at, g);
  if (my.group != kDeltaRuleGroups - 1) return;
  sh.weight[token.buffer + my.lane] = token.at < token.entry ? factor : 1.0f;
  if (token.at == token.entry) sh.decay[token.t % 2] = factor;
}

// ShareWeights in the block's last wave; other waves return at once. `g`: LoadLogG's result; lane token.entry's is set
// to the token's own g.
template <int kWave, typename Shared>
__device__ __forceinline__ void FindWeights(const DeltaRuleArgs& p, const DecodeLane& my, const DecodeToken& token,
                                            Shared& sh, float& g) {
  if (my.thread < kDeltaRuleThreads - kWave) return;
  if (token.at == token.entry) g = p.g[token.row * p.value_heads + my.task.head];
  ShareWeights<kWave>(my, token, g, sh);
}

// The log as token t sees it; lane e of a group has entry e. `entry` is the token's own. For decays by channel the
// products contain the weights, and weight and decay are 1.
struct TokenLog {
  float weight;    // e^{G_t-G_e}; 1 from `entry` on
  float weight_k;  // weight * k_e.k_t, rounded; 0 from `entry` on
  float rest_k;    // the rounding error of weight_k
  float weight_q;  // weight * k_e.q_t; 0 from `entry` on
  float decay;     // e^{G_t}
  float self;      // k_t.q_t
};

// Returns a key product times `factor`, in two floats: the rounding error of the first is in `rest`.
__device__ __forceinline__ KeyProduct Weighted(float factor, const KeyProduct& product) {
  const float nearest = factor * product.nearest;
  return {nearest, fmaf(factor, product.rest, fmaf(factor, product.nearest, -nearest))};
}

// Returns the EntryDots of log entry my.lane from LDS; zeros from token.entry on.
template <typename Shared>
__device__ __forceinline__ EntryDots LaneDots(const DecodeLane& my, const DecodeToken& token, Shared& sh) {
  const int entry = min(my.lane, token.entry);
  const EntryDots dots = EntryDots::Load(sh.dots, 2 * token.buffer + entry, 4 * kLogCapacity + token.buffer + entry);
  const bool logged = token.at < token.entry;
  return {{logged ? dots.k.nearest : 0.0f, logged ? dots.k.rest : 0.0f}, logged ? dots.q : 0.0f};
}

// Returns the log data of entry my.lane for the token, from what the block's groups have put into LDS. Call after a
// barrier behind ShareEntryDots and FindWeights.
template <typename Shared>
__device__ __forceinline__ TokenLog SharedLog(const DecodeLane& my, const DecodeToken& token, Shared& sh) {
  const EntryDots dots = LaneDots(my, token, sh);
  TokenLog log;
  log.weight = sh.weight[token.buffer + my.lane];
  const KeyProduct weighted = Weighted(log.weight, dots.k);
  log.weight_k = weighted.nearest;
  log.rest_k = weighted.rest;
  log.weight_q = log.weight * dots.q;
  log.decay = sh.decay[token.t % 2];
  log.self = sh.dots[2 * token.buffer + kLogCapacity + token.entry];
  return log;
}

// Computes the token from state and log. Returns the output of the lane's own column if token.reads, else its u_t;
// `now` becomes u_t in both cases. v and beta are the token's (v of the own column), u[c] is u of the lane's log entry.
// state_dots(c, k, q) gives this lane's parts of S0^T k and S0^T q of column c. All lanes of the wave call.
template <int kWave, int kColumns, typename StateDots>
__device__ __forceinline__ float ReadColumns(const DecodeToken& token, float v, float beta, const float (&u)[kColumns],
                                             StateDots state_dots, const TokenLog& log, float& now) {
  constexpr int kShare = kSharingLanes<kColumns>;
  float parts[2 * kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    float state_k;
    float state_q;
    state_dots(c, state_k, state_q);
    // Adds the small parts first: this lane's part of S0^T k is small too, so rounding does not lose them.
    parts[2 * c] = fmaf(log.weight_k, u[c], fmaf(log.decay, state_k, log.rest_k * u[c]));
    parts[2 * c + 1] = fmaf(log.weight_q, u[c], log.decay * state_q);
  }
  const float sum = SumOfLane<2 * kColumns, kWave>(parts, token.at);
  const float other = ButterflyPartner<kShare, kWave>(sum);
  now = beta * (v - (token.reads ? other : sum));
  return token.reads ? fmaf(log.self, now, sum) : now;
}

// Returns the address for ReadColumns' result: the own column's in the output if token.reads, else in the token's row
// of log_u.
__device__ __forceinline__ float* TokenTarget(const DecodeArgs& args, const DecodeLane& my, const DecodeToken& token) {
  const DeltaRuleArgs& p = args.rule;
  return token.reads ? p.output + (token.row * p.value_heads + my.task.head) * p.value_dim + my.column + token.own
                     : my.log_u + (token.n & args.row_mask) * my.u_stride + token.own;
}

// Calls ReadColumns and stores the lane's result, an output or a u, at TokenTarget. Returns u_t of the lane's column.
template <int kWave, int kColumns, typename StateDots>
__device__ __forceinline__ float ReadToken(const DecodeArgs& args, const DecodeLane& my, const DecodeToken& token,
                                           float v, float beta, const float (&u)[kColumns], StateDots state_dots,
                                           const TokenLog& log) {
  float now;
  const float value = ReadColumns<kWave, kColumns>(token, v, beta, u, state_dots, log, now);
  if (token.at % kSharingLanes<kColumns> == 0 && token.own < my.count) *TokenTarget(args, my, token) = value;
  return now;
}

// Adds the token to the log that the lanes hold in registers: `u` of lane token.entry becomes u_t of the group's
// columns; other lanes' stay. `now`: u_t of the lane's own column, from ReadToken. Lanes exchange values through sh.u.
template <int kColumns, typename Shared>
__device__ __forceinline__ void KeepU(const DecodeLane& my, const DecodeToken& token, float now, Shared& sh,
                                      float (&u)[kColumns]) {
  const int at = token.entry * Shared::kBlockColumns + my.group * kColumns;
  if (token.at % (2 * kSharingLanes<kColumns>) == 0) sh.u[at + token.own] = now;
  WaveBarrier();
  if (token.at == token.entry) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) u[c] = sh.u[at + c];
  }
}

// Adds the token to the log in memory, in a row that no block of this launch reads. Writes its g, and calls
// store_key(row) to write k, once for each key head. In each value head's first block of columns, group `group` does
// this; others return at once. If the call is no draft, skips tokens after its fold; a later kernel writes these.
template <typename StoreKey>
__device__ __forceinline__ void AppendRow(const DecodeArgs& args, const DecodeLane& my, int group,
                                          const DecodeToken& token, float g, StoreKey store_key) {
  const DeltaRuleArgs& p = args.rule;
  if (token.n > args.row_mask || my.task.column_block != 0 || my.group != group) return;
  if (my.lane == token.entry) my.log_g[int64_t{token.n} * p.value_heads] = g;
  if (my.task.head != my.task.key_head * p.group) return;
  store_key(my.slot + p.at.log_k + int64_t{token.n} * p.key_heads * p.key_dim + int64_t{my.task.key_head} * p.key_dim);
}

// Copies the log's u from the lanes' registers to sh.u, where the whole group reads it for a fold. Empties the log in
// the registers: u and g become 0.
template <int kColumns, typename Shared>
__device__ __forceinline__ void EmptyLog(const DecodeLane& my, Shared& sh, float (&u)[kColumns], float& g) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    sh.u[my.lane * Shared::kBlockColumns + my.group * kColumns + c] = u[c];
    u[c] = 0.0f;
  }
  g = 0.0f;
  WaveBarrier();
}

// Returns the group's columns in the base of the sequence's own slot (not base_slot), where folds are stored. Base:
// float or uint16_t.
template <typename Base>
__device__ __forceinline__ Base* OwnBase(const DeltaRuleArgs& p, const DecodeLane& my) {
  return reinterpret_cast<Base*>(my.slot + p.at.base) + my.column_offset;
}

// Folds the full log, with u as EmptyLog left it in sh.u, into the columns in registers. Then stores them to the slot's
// base, unless the call is a draft: a draft's columns stay in registers, rounded as if they had been stored and loaded.
template <int kElements, int kColumns, bool kExact, typename Base, typename Shared>
__device__ __forceinline__ void FoldInRegisters(const DecodeArgs& args, const DecodeLane& my, const DecodeToken& token,
                                                int64_t first_row, int log_length, Shared& sh,
                                                float (&s)[kColumns][kElements]) {
  const DeltaRuleArgs& p = args.rule;
  const float decay = sh.decay[token.t % 2];
  FoldColumns<kElements, kColumns, kExact>(
      decay, kLogCapacity, my.lane, token.key_dim,
      [&](int e) { return KeyRow(p, my, first_row, log_length, token.since + e); },
      [&](int e) -> float { return sh.weight[token.buffer + e]; },
      [&](int e, float(&entry_u)[kColumns]) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) entry_u[c] = sh.u[e * Shared::kBlockColumns + my.group * kColumns + c];
      },
      s);
  if constexpr (kRounds<Base>) RoundState<kElements, kColumns>(s);
  if (args.row_mask == kLogCapacity - 1) {
    StoreState<kElements, kColumns, kExact>(OwnBase<Base>(p, my), my.count, my.lane, token.key_dim, s);
  }
}

}  // namespace gdn::gpu
