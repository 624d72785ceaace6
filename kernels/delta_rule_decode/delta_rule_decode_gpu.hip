// The deferred delta rule on the GPU; G is the running sum of g since the base, e < t are the log's entries:
//   pred = e^{G_t} S0^T k_t + sum_{e<t} e^{G_t-G_e} (k_e.k_t) u_e        u_t = beta (v_t - pred)
//   o    = e^{G_t} S0^T q_t + sum_{e<=t} e^{G_t-G_e} (k_e.q_t) u_e
//   once the log holds L tokens:  S0 <- e^{G_L} S0 + sum_e e^{G_L-G_e} k_e u_e^T
//
// Threads: 16 lanes hold kColumns columns of S0 in registers for the whole call, so T tokens read it once (once a token
// where K > 256 does not fill the lanes); a block is 16 such groups of one (sequence, value head). Each group computes
// the dot products of one log entry for all of the block, and each lane of a group keeps one entry's u: the sums over
// the log ride along in the reduction of S0^T k and S0^T q. The block's last wave finds the entries' weights meanwhile.
// All loads of a call's first token are under way before the first barrier, and steps of one token a sequence have an
// instance of their own: what counts is how many columns a processor has on their way.
// Tokens are counted by their position n since the log was last empty: the log's entries first, then the call's. Entry
// n mod L of the log holds token n; folds fall after n = L - 1, 2 L - 1, ..
// Across blocks: rows of log_u are written by the block that owns their columns. Rows of log_k and log_g are read by
// every block of a head, so here only rows that no block reads are written, by one block each: those of the tokens
// before the first fold. A second kernel writes the rows of the tokens after it. A draft has all rows to itself: token n
// goes to row n, past L where need be, and folds stay in the registers, or in the workspace where K is in memory.
// Resources: at most 128 VGPRs, 87 for a token at K = 128, 225 for K = 1024; up to 9 KB of LDS; no spills (gfx906). Bound by memory: S0 is K V floats
// a head, all else a tenth.

#include <limits>

#include "base/status_macros.h"
#include "kernels/delta_rule_decode/delta_rule_decode.h"
#include "kernels/delta_rule_decode/delta_rule_log_gpu-inl.h"

namespace gdn {
namespace gpu {
namespace {

static_assert(kLogCapacity == kColumnLanes, "a lane keeps one log entry's u");
static_assert(kLogCapacity == kDeltaRuleGroups, "a group computes one log entry's dot products");

struct DecodeArgs {
  DeltaRuleArgs rule;
  const int32_t* log_lengths;  // [sequences], before the call
  const int32_t* base_slots;   // [sequences], where bases are read
  float* unwritten;            // [sequences, HV, V, K], the folded bases of a draft whose columns stay in memory
  int32_t row_mask;            // token n goes to log row n & row_mask: L - 1, or everything for a draft
};

template <int kBlockColumns>
struct Shared {
  // Of a token, by entry; two of each, for a fast wave may be a token ahead.
  LdsArray<float, 2 * kLogCapacity> weight;         // e^{G_t-G_e}
  LdsArray<float, 4 * kLogCapacity> dots;           // k_e.k_t of all entries, then k_e.q_t
  LdsArray<int32_t, 1> first;                       // row of the sequence
  LdsArray<float, 2> decay;                         // e^{G_t}
  LdsArray<float, kLogCapacity * kBlockColumns> u;  // from lane to lane, and for a fold
};

// The key of position n: from the log, or from the call.
__device__ __forceinline__ const float* KeyRow(const DeltaRuleArgs& p, const float* slot, const BlockTask& task,
                                               int64_t first, int log_length, int n) {
  const int64_t offset = int64_t{task.key_head} * p.key_dim;
  return n < log_length ? slot + p.at.log_k + int64_t{n} * p.key_heads * p.key_dim + offset
                        : p.k + (first + n - log_length) * p.k_stride + offset;
}

// Columns of more than 256 elements that do not fill the lanes stay in memory, and each token reads them: the guards of
// so many registers would not fit the scalar ones. One kernel serves every such K, with the bits that columns in
// registers would have.
template <int kElements, bool kExact>
inline constexpr bool kInMemory = kElements > 16 && !kExact;

// Blocks that a processor must be able to hold: more loads under way. A third costs spills where waves have 64 lanes.
template <int kWave, int kElements, bool kOneToken>
inline constexpr int kLeastBlocks = kElements > 32 ? 1 : (kWave == 32 && kOneToken && kElements <= 8 ? 3 : 2);

template <int kWave, int kElements, int kColumns, bool kExact, bool kOneToken>
__global__ __launch_bounds__(kDeltaRuleThreads,
                             (kLeastBlocks<kWave, kElements, kOneToken>)) void DeltaRuleDecodeKernel(DecodeArgs args) {
  constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  Shared<kBlockColumns>& sh = SharedMemory<Shared<kBlockColumns>>();
  const DeltaRuleArgs& p = args.rule;
  const BlockTask task = TaskOf(p);
  const int64_t first = p.cu_seqlens[task.sequence];
  const int tokens = static_cast<int>(p.cu_seqlens[task.sequence + 1] - first);
  const int slot_index = p.slots[task.sequence];
  const int log_length = args.log_lengths[task.sequence];
  const int base_slot = args.base_slots[task.sequence];
  if (tokens == 0) return;
  if (slot_index < 0) {
    ZeroOutput(p, task, kBlockColumns, first, first + tokens);
    return;
  }
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kColumnLanes;
  const int group = thread / kColumnLanes;
  const int column = task.column_block * kBlockColumns + group * kColumns;
  const int count = p.value_dim - column;
  float* slot = p.pool + slot_index * p.at.slot_floats;
  const int64_t column_offset = (int64_t{task.head} * p.value_dim + column) * p.key_dim;
  const float* columns = p.pool + base_slot * p.at.slot_floats + p.at.base + column_offset;
  float* log_u = slot + p.at.log_u + int64_t{task.head} * p.value_dim + column;
  float* log_g = slot + p.at.log_g + task.head;
  const int64_t u_stride = int64_t{p.value_heads} * p.value_dim;

  constexpr bool kStateInMemory = kInMemory<kElements, kExact>;
  static_assert(!kStateInMemory || kColumns == 1);
  float s[kColumns][kElements];
  if constexpr (!kStateInMemory) LoadState<kElements, kColumns, kExact>(columns, count, lane, p.key_dim, s);
  float u[kColumns];  // of log entry `lane`
  if constexpr (kExact) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) u[c] = 0.0f;
    if (lane < log_length) LoadColumns<kColumns, true>(log_u + lane * u_stride, count, u);
  } else {
    LoadColumns<kColumns, false>(log_u + lane * u_stride, lane < log_length ? count : 0, u);
  }
  // Of log entry `lane`, in the block's last wave: it finds the weights for all, while the others find more of the dot products.
  float g = thread >= kDeltaRuleThreads - kWave && lane < log_length ? log_g[int64_t{lane} * p.value_heads] : 0.0f;
  // A lane ends up with one column's sums, of S0^T k or of S0^T q.
  constexpr int kShare = kColumnLanes / (2 * kColumns);  // lanes with the same of them
  if constexpr (kStateInMemory) {
    if (thread == 0) sh.first[0] = static_cast<int32_t>(first);
    SyncThreads();
  }
  // From LDS: what is counted from it lies in vector registers then, for the scalar ones would not hold it all.
  const int32_t shared_first = kStateInMemory ? sh.first[0] : 0;
  const int64_t first_row = kStateInMemory ? shared_first : first;

  const int steps = kOneToken ? 1 : tokens;
  for (int t = 0; t < steps; ++t) {
    const int n = log_length + t;
    const int entry = n % kLogCapacity;
    const int since = n - entry;  // position of the log's first entry
    const int buffer = t % 2 * kLogCapacity;
    const int64_t row = first_row + t;
    // A row is never negative, but the compiler does not know, and so does not keep the guards' masks from token to
    // token: there are more of them than scalar registers.
    const int key_dim = kExact || kStateInMemory || row >= 0 ? p.key_dim : 0;
    const int at = kOneToken || row >= 0 ? lane : 0;  // likewise the masks of lanes
    const int own = at / (2 * kShare);
    const bool reads = (at / kShare) % 2 == 1;
    const float* k_row = p.k + row * p.k_stride + int64_t{task.key_head} * p.key_dim;
    const float* q_row = p.q + row * p.q_stride + int64_t{task.key_head} * p.key_dim;
    float k[kElements];
    float q[kElements];
    if constexpr (kElements <= 16) {
      LoadFragment<kElements, kExact>(k_row, lane, key_dim, k);
      LoadFragment<kElements, kExact>(q_row, lane, key_dim, q);
    }
    const float v =
        kExact || own < count ? p.v[row * p.v_stride + int64_t{task.head} * p.value_dim + column + own] : 0.0f;
    float state_k = 0.0f;  // this lane's parts of S0^T k and S0^T q
    float state_q = 0.0f;
    const float beta = p.beta[row * p.value_heads + task.head];
    // Group e has entry e; waves without entries have nothing to do.
    constexpr int kWaveGroups = kWave / kColumnLanes;
    if (kElements > 16 || group / kWaveGroups * kWaveGroups <= entry) {
      const float* entry_row = KeyRow(p, slot, task, first_row, log_length, since + min(group, entry));
      constexpr int kRows = kStateInMemory ? 2 : 1;
      float part_k[kRows];
      float part_q[kRows];
      if constexpr (kElements <= 16) {
        float entry_k[kElements];
        LoadFragment<kElements, kExact>(entry_row, lane, key_dim, entry_k);
        part_k[0] = Dot(entry_k, k);
        part_q[0] = Dot(entry_k, q);
      } else if constexpr (!kStateInMemory) {
        StreamedDots<kExact, 1>({entry_row}, k_row, q_row, lane, key_dim, {0.0f}, part_k, part_q);
      } else {
        // A group past the last column finds something to read, and writes nothing.
        StreamedDots<kExact, 2>({entry_row, count > 0 ? columns : entry_row}, k_row, q_row, lane, key_dim,
                                {0.0f, -0.0f}, part_k, part_q);
        state_k = part_k[1];
        state_q = part_q[1];
      }
      const float parts[2] = {part_k[0], part_q[0]};
      const float dot = SumOfLane<2, kWave>(parts, at);
      if (at % (kColumnLanes / 2) == 0) {
        sh.dots[2 * buffer + lane / (kColumnLanes / 2) * kLogCapacity + group] = dot;
      }
    }
    if (thread >= kDeltaRuleThreads - kWave) {
      // In double, in this order, whatever the token's place in the call; lane `entry` finds e^{G_t}.
      if (at == entry) g = p.g[row * p.value_heads + task.head];
      const int after = at < entry ? lane : -1;
      double sum = 0.0;
#pragma unroll 1
      for (int few = 0; few <= entry; few += 4) {
#pragma unroll
        for (int e = few; e < few + 4; ++e) {
          const float entry_g = Bpermute<kWave>(e, g);  // of the last wave's first lanes; zero past `entry`
          sum += e > after ? static_cast<double>(entry_g) : 0.0;
        }
      }
      const float factor = expf(static_cast<float>(sum));
      if (group == kDeltaRuleGroups - 1) {
        sh.weight[buffer + lane] = at < entry ? factor : 1.0f;
        if (at == entry) sh.decay[t % 2] = factor;
      }
    }
    SyncThreads();

    if constexpr (kElements > 16 && !kStateInMemory) {
      LoadFragment<kElements, kExact>(k_row, lane, key_dim, k);
      LoadFragment<kElements, kExact>(q_row, lane, key_dim, q);
    }
    const float decay = sh.decay[t % 2];
    const float self = sh.dots[2 * buffer + kLogCapacity + entry];
    const float weight = sh.weight[buffer + lane];
    const float lane_dot_k = sh.dots[2 * buffer + min(lane, entry)];
    const float lane_dot_q = sh.dots[2 * buffer + kLogCapacity + min(lane, entry)];
    const float weight_k = at < entry ? weight * lane_dot_k : 0.0f;
    const float weight_q = at < entry ? weight * lane_dot_q : 0.0f;
    float parts[2 * kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if constexpr (!kStateInMemory) {
        state_k = Dot(s[c], k);
        state_q = Dot(s[c], q);
      }
      parts[2 * c] = fmaf(weight_k, u[c], decay * state_k);
      parts[2 * c + 1] = fmaf(weight_q, u[c], decay * state_q);
    }
    const float sum = SumOfLane<2 * kColumns, kWave>(parts, at);
    const float other = ButterflyPartner<kShare, kWave>(sum);
    const float now = beta * (v - (reads ? other : sum));
    if (at % kShare == 0 && own < count) {
      float* to = reads ? p.output + (row * p.value_heads + task.head) * p.value_dim + column + own
                        : log_u + (n & args.row_mask) * u_stride + own;
      *to = reads ? fmaf(self, now, sum) : now;
    }
    if (!kOneToken || entry == kLogCapacity - 1) {
      if (at % (2 * kShare) == 0) sh.u[entry * kBlockColumns + group * kColumns + own] = now;
      WaveBarrier();
      if (at == entry) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) u[c] = sh.u[entry * kBlockColumns + group * kColumns + c];
      }
    }
    if (n <= args.row_mask && task.column_block == 0 && group == kDeltaRuleGroups - 1) {
      if (lane == entry) log_g[int64_t{n} * p.value_heads] = g;
      if (task.head == task.key_head * p.group) {
        float* log_k = slot + p.at.log_k + int64_t{n} * p.key_heads * p.key_dim + int64_t{task.key_head} * p.key_dim;
        if constexpr (kStateInMemory) {
#pragma unroll 1
          for (int i = lane; i < key_dim; i += kColumnLanes) log_k[i] = k_row[i];
        } else {
          StoreFragment<kElements, kExact>(log_k, lane, key_dim, k);
        }
      }
    }

    if (entry == kLogCapacity - 1) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        sh.u[lane * kBlockColumns + group * kColumns + c] = u[c];
        u[c] = 0.0f;
      }
      g = 0.0f;
      WaveBarrier();
      if constexpr (kStateInMemory) {
        // FoldColumns an element at a time.
        float* folded = args.unwritten == nullptr
                            ? slot + p.at.base
                            : args.unwritten + task.sequence * (int64_t{p.value_heads} * p.value_dim * p.key_dim);
        folded += column_offset;
#pragma unroll 1
        for (int i = lane; i < (count > 0 ? key_dim : 0); i += kColumnLanes) {
          float element = columns[i] * decay;
#pragma unroll 4
          for (int e = 0; e < kLogCapacity; ++e) {
            const float entry_weight = sh.weight[buffer + e];
            const float entry_u = sh.u[e * kBlockColumns + group];
            element = fmaf(entry_weight * KeyRow(p, slot, task, first_row, log_length, since + e)[i], entry_u, element);
          }
          folded[i] = element;
        }
        columns = folded;
        SyncThreads();  // other lanes read what this one wrote
      } else {
        FoldColumns<kElements, kColumns, kExact>(
            decay, kLogCapacity, lane, key_dim,
            [&](int e) { return KeyRow(p, slot, task, first_row, log_length, since + e); },
            [&](int e) -> float { return sh.weight[buffer + e]; },
            [&](int e, float(&entry_u)[kColumns]) {
#pragma unroll
              for (int c = 0; c < kColumns; ++c) entry_u[c] = sh.u[e * kBlockColumns + group * kColumns + c];
            },
            s);
        if (args.row_mask == kLogCapacity - 1) {
          StoreState<kElements, kColumns, kExact>(slot + p.at.base + column_offset, count, lane, key_dim, s);
        }
      }
    }
  }
}

// Log rows of the tokens after a call's first fold; of each row the last such token. A block a sequence.
__global__ __launch_bounds__(kDeltaRuleThreads) void AppendFoldedLogKernel(DecodeArgs args) {
  const DeltaRuleArgs& p = args.rule;
  const int slot_index = p.slots[blockIdx.x];
  const int64_t first = p.cu_seqlens[blockIdx.x];
  const int tokens = static_cast<int>(p.cu_seqlens[blockIdx.x + 1] - first);
  if (slot_index < 0 || tokens == 0) return;
  const int log_length = args.log_lengths[blockIdx.x];
  const int positions = log_length + tokens;
  float* slot = p.pool + slot_index * p.at.slot_floats;
  const int features = p.key_heads * p.key_dim;
  for (int n = max(kLogCapacity, positions - kLogCapacity); n < positions; ++n) {
    const int64_t row = first + n - log_length;
    const int entry = n % kLogCapacity;
    for (int i = static_cast<int>(threadIdx.x); i < features; i += kDeltaRuleThreads) {
      slot[p.at.log_k + int64_t{entry} * features + i] = p.k[row * p.k_stride + i];
    }
    for (int i = static_cast<int>(threadIdx.x); i < p.value_heads; i += kDeltaRuleThreads) {
      slot[p.at.log_g + int64_t{entry} * p.value_heads + i] = p.g[row * p.value_heads + i];
    }
  }
}

template <int kWave, int kElements, int kColumns, bool kExact, bool kOneToken>
absl::Status LaunchDecode(const DeltaRuleDecodeParams& params, const DeviceBatch& batch, float* workspace,
                          const Stream& stream) {
  constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  const bool unwritten = params.draft && kInMemory<kElements, kExact>;
  const DecodeArgs args{MakeDeltaRuleArgs(params.rule, batch, kBlockColumns), batch.log_lengths,
                        batch.base_slots != nullptr ? batch.base_slots : batch.slots, unwritten ? workspace : nullptr,
                        params.draft ? std::numeric_limits<int32_t>::max() : kLogCapacity - 1};
  const Grid grid{int64_t{batch.sequences} * args.rule.value_heads * args.rule.column_blocks};
  GDN_RETURN_IF_ERROR(Launch("delta_rule_decode", DeltaRuleDecodeKernel<kWave, kElements, kColumns, kExact, kOneToken>,
                             grid, kDeltaRuleThreads, stream, args));
  // One token never comes after a fold of its own call, and a draft's have been written.
  if (batch.max_length <= 1 || params.draft) return absl::OkStatus();
  return Launch("delta_rule_append_folded_log", AppendFoldedLogKernel, {batch.sequences}, kDeltaRuleThreads, stream,
                args);
}

// Shapes that do not fill the lanes are guarded element by element, in the narrowest blocks.
template <int kWave, int kElements>
absl::Status LaunchDecodeOf(const DeltaRuleDecodeParams& params, const DeviceBatch& batch, float* workspace,
                            const Stream& stream) {
  constexpr int kMost = kMostColumns<kElements>;
  const DeltaRuleParams& rule = params.rule;
  const LayerDims& dims = rule.pool.layout.dims();
  const int64_t heads = int64_t{batch.sequences} * dims.value_heads;
  const int columns = ChooseColumns(kMost, heads, dims.value_dim, stream);
  if (!ExactRule(rule, kElements, kDeltaRuleGroups * columns)) {
    constexpr int kGuarded = kInMemory<kElements, false> ? 32 : kElements;
    return LaunchDecode < kWave, kGuarded, kElements <= 8 ? 2 : 1, false, false > (params, batch, workspace, stream);
  }
  return WithColumns<kMost>(columns, [&](auto chosen) {
    constexpr int kColumns = decltype(chosen)::value;
    if constexpr (kElements <= 16) {
      if (batch.max_length <= 1) {
        return LaunchDecode<kWave, kElements, kColumns, true, true>(params, batch, workspace, stream);
      }
    }
    return LaunchDecode<kWave, kElements, kColumns, true, false>(params, batch, workspace, stream);
  });
}

}  // namespace
}  // namespace gpu

int64_t DeltaRuleDecodeGpuWorkspaceFloats(const DeltaRuleDecodeParams& params) {
  const LayerDims& dims = params.rule.pool.layout.dims();
  // Columns of more than 16 elements a lane may be in memory.
  if (!params.draft || dims.key_dim <= 16 * gpu::kColumnLanes) return 0;
  return params.rule.batch.sequences * dims.state_elements();
}

absl::Status DeltaRuleDecodeGpu(const DeltaRuleDecodeParams& params, const gpu::DeviceBatch& batch, float* workspace,
                                const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateDeltaRuleDecode(params));
  if (batch.sequences == 0 || batch.tokens == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(gpu::WithWaveWidth(stream, "delta_rule_decode", [&](auto wave) {
    return gpu::WithElements<kMaxHeadDim / gpu::kColumnLanes>(
        params.rule.pool.layout.dims().key_dim, [&](auto elements) {
          return gpu::LaunchDecodeOf<decltype(wave)::value, decltype(elements)::value>(params, batch, workspace,
                                                                                       stream);
        });
  }));
  for (int32_t i = 0; i < params.rule.batch.sequences; ++i) {
    if (params.rule.batch.slots[i] < 0) continue;
    const int32_t reached = params.log_lengths[i] + params.rule.batch.length(i);
    params.log_lengths[i] = params.draft ? reached : reached % kLogCapacity;
  }
  return absl::OkStatus();
}

}  // namespace gdn
