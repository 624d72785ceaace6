// The deferred delta rule on the GPU; G is the running sum of g since the base, e < t are the log's entries:
//   pred = e^{G_t} S0^T k_t + sum_{e<t} e^{G_t-G_e} (k_e.k_t) u_e        u_t = beta (v_t - pred)
//   o    = e^{G_t} S0^T q_t + sum_{e<=t} e^{G_t-G_e} (k_e.q_t) u_e
//   once the log holds L tokens:  S0 <- e^{G_L} S0 + sum_e e^{G_L-G_e} k_e u_e^T
//
// Threads: 16 lanes hold kColumns columns of S0 in registers for the whole call, so T tokens read it once (once a token
// where K > 256 does not fill the lanes); a block is 16 such groups of one (sequence, value head). Each group computes
// the dot products of one log entry for all of the block, and each lane of a group keeps one entry's u: the sums over
// the log ride along in the reduction of S0^T k and S0^T q.
// Tokens are counted by their position n since the log was last empty: the log's entries first, then the call's. Entry
// n mod L of the log holds token n; folds fall after n = L - 1, 2 L - 1, ..
// Across blocks: rows of log_u are written by the block that owns their columns. Rows of log_k and log_g are read by
// every block of a head, so here only rows that no block reads are written, by one block each: those of the tokens
// before the first fold. A second kernel writes the rows of the tokens after it.
// Resources: at most 126 VGPRs, 222 for K = 1024; up to 9 KB of LDS; no spills. Bound by memory: S0 is K V floats
// a head, all else a tenth.

#include "base/status_macros.h"
#include "kernels/delta_rule_decode/delta_rule_decode.h"
#include "kernels/delta_rule_decode/delta_rule_log_gpu-inl.h"

namespace gdn {
namespace gpu {
namespace {

static_assert(kLogCapacity == kColumnLanes, "a lane keeps one log entry's u");
static_assert(kLogCapacity == kDeltaRuleGroups, "a group computes one log entry's dot products");

constexpr int kMaxPositions = kLogCapacity - 1 + kMaxDraftLimit;

struct DecodeArgs {
  DeltaRuleArgs rule;
  const int32_t* log_lengths;  // [sequences], before the call
};

template <int kBlockColumns>
struct Shared {
  LdsArray<float, kMaxPositions> g;  // by position
  // Of a token, by entry; two of each, for a fast wave may be a token ahead.
  LdsArray<float, 2 * kLogCapacity> weight;         // e^{G_t-G_e}
  LdsArray<float, 2 * kLogCapacity> weight_k;       // times k_e.k_t; zero from t on
  LdsArray<float, 2 * kLogCapacity> weight_q;       // times k_e.q_t; zero after t
  LdsArray<int32_t, 1> first;                       // row of the sequence
  LdsArray<float, 2> decay;                         // e^{G_t}
  LdsArray<float, kLogCapacity * kBlockColumns> u;  // for a fold
};

// The key of position n: from the log, or from the call.
__device__ __forceinline__ const float* KeyRow(const DeltaRuleArgs& p, const float* slot, const BlockTask& task,
                                               int64_t first, int log_length, int n) {
  const int64_t offset = int64_t{task.key_head} * p.key_dim;
  return n < log_length ? slot + p.at.log_k + int64_t{n} * p.key_heads * p.key_dim + offset
                        : p.k + (first + n - log_length) * p.k_stride + offset;
}

// What a lane adds to the dot products of rows with k and q, in the sums of Dot.
template <int kRows>
struct DotSums {
  float k[kRows][4];
  float q[kRows][4];
};

template <int kStep, bool kExact, int kRows>
__device__ __forceinline__ void AddProducts(const float* const (&rows)[kRows], const float* k, const float* q, int at,
                                            int lane, int left, DotSums<kRows>& sums) {
  float x[kStep];
  float y[kStep];
  LoadFragment<kStep, kExact>(k + at, lane, left, x);
  LoadFragment<kStep, kExact>(q + at, lane, left, y);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float e[kStep];
    LoadFragment<kStep, kExact>(rows[r] + at, lane, left, e);
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      sums.k[r][i & 3] = fmaf(e[i], x[i], sums.k[r][i & 3]);
      sums.q[r][i & 3] = fmaf(e[i], y[i], sums.q[r][i & 3]);
    }
  }
}

// This lane's parts of row.k and row.q, by and by: rows of more than 256 elements would fill the registers. Elements
// are multiplied in the order of Dot, whose sums start from -0. Only the last few are guarded.
template <bool kExact, int kRows>
__device__ __forceinline__ void StreamedDots(const float* const (&rows)[kRows], const float* k, const float* q,
                                             int lane, int key_dim, const float (&start)[kRows], float (&part_k)[kRows],
                                             float (&part_q)[kRows]) {
  constexpr int kLong = 16 / kRows;
  constexpr int kShort = 4;
  DotSums<kRows> sums;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums.k[r][i] = sums.q[r][i] = start[r];
  }
  int at = 0;
#pragma unroll 1
  for (; at + kLong * kColumnLanes <= key_dim; at += kLong * kColumnLanes) {
    AddProducts<kLong, kExact>(rows, k, q, at, lane, kLong * kColumnLanes, sums);
  }
  if constexpr (!kExact) {
#pragma unroll 1
    for (; at < key_dim; at += kShort * kColumnLanes) {
      AddProducts<kShort, false>(rows, k, q, at, lane, key_dim - at, sums);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    part_k[r] = (sums.k[r][0] + sums.k[r][1]) + (sums.k[r][2] + sums.k[r][3]);
    part_q[r] = (sums.q[r][0] + sums.q[r][1]) + (sums.q[r][2] + sums.q[r][3]);
  }
}

// Columns of more than 256 elements that do not fill the lanes stay in memory, and each token reads them: the guards of
// so many registers would not fit the scalar ones. One kernel serves every such K, with the bits that columns in
// registers would have.
template <int kElements, bool kExact>
inline constexpr bool kInMemory = kElements > 16 && !kExact;

template <int kWave, int kElements, int kColumns, bool kExact>
__global__ __launch_bounds__(kDeltaRuleThreads) void DeltaRuleDecodeKernel(DecodeArgs args) {
  constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  Shared<kBlockColumns>& sh = SharedMemory<Shared<kBlockColumns>>();
  const DeltaRuleArgs& p = args.rule;
  const BlockTask task = TaskOf(p);
  const int64_t first = p.cu_seqlens[task.sequence];
  const int tokens = static_cast<int>(p.cu_seqlens[task.sequence + 1] - first);
  const int slot_index = p.slots[task.sequence];
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
  const int log_length = args.log_lengths[task.sequence];
  float* slot = p.pool + slot_index * p.at.slot_floats;
  float* columns = slot + p.at.base + (int64_t{task.head} * p.value_dim + column) * p.key_dim;
  float* log_u = slot + p.at.log_u + int64_t{task.head} * p.value_dim + column;
  float* log_g = slot + p.at.log_g + task.head;
  const int64_t u_stride = int64_t{p.value_heads} * p.value_dim;

  constexpr bool kStateInMemory = kInMemory<kElements, kExact>;
  static_assert(!kStateInMemory || kColumns == 1);
  float s[kColumns][kElements];
  if constexpr (!kStateInMemory) LoadState<kElements, kColumns, kExact>(columns, count, lane, p.key_dim, s);
  float u[kColumns];  // of log entry `lane`
  LoadColumns<kColumns, false>(log_u + lane * u_stride, lane < log_length ? count : 0, u);
  if (thread < log_length + tokens) {
    sh.g[thread] = thread < log_length ? log_g[int64_t{thread} * p.value_heads]
                                       : p.g[(first + thread - log_length) * p.value_heads + task.head];
  }
  if (kStateInMemory && thread == 0) sh.first[0] = static_cast<int32_t>(first);
  SyncThreads();
  // From LDS: what is counted from it lies in vector registers then, for the scalar ones would not hold it all.
  const int32_t shared_first = kStateInMemory ? sh.first[0] : 0;
  const int64_t first_row = kStateInMemory ? shared_first : first;

  for (int t = 0; t < tokens; ++t) {
    const int n = log_length + t;
    const int entry = n % kLogCapacity;
    const int since = n - entry;  // position of the log's first entry
    const int buffer = t % 2 * kLogCapacity;
    const int64_t row = first_row + t;
    // A row is never negative, but the compiler does not know, and so does not keep the guards' masks from token to
    // token: there are more of them than scalar registers.
    const int key_dim = kExact || kStateInMemory || row >= 0 ? p.key_dim : 0;
    const float* k_row = p.k + row * p.k_stride + int64_t{task.key_head} * p.key_dim;
    const float* q_row = p.q + row * p.q_stride + int64_t{task.key_head} * p.key_dim;
    float k[kElements];
    float q[kElements];
    float v[kColumns];
    if constexpr (kElements <= 16) {
      LoadFragment<kElements, kExact>(k_row, lane, key_dim, k);
      LoadFragment<kElements, kExact>(q_row, lane, key_dim, q);
    }
    LoadColumns<kColumns, kExact>(p.v + row * p.v_stride + int64_t{task.head} * p.value_dim + column, count, v);
    float state_k = 0.0f;  // this lane's parts of S0^T k and S0^T q
    float state_q = 0.0f;
    const float beta = p.beta[row * p.value_heads + task.head];
    {
      // Group e has entry e; the one of the token itself, whose weight is 1, finds e^{G_t} instead.
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
      const float dot_k = GroupSum<kColumnLanes, kWave>(part_k[0]);
      const float dot_q = GroupSum<kColumnLanes, kWave>(part_q[0]);
      const int after = group < entry ? since + group : since - 1;
      const float factor = expf(static_cast<float>(SumBetween(sh.g, since, n, after, n)));
      if (lane == 0) {
        sh.weight[buffer + group] = group < entry ? factor : 1.0f;
        sh.weight_k[buffer + group] = group < entry ? factor * dot_k : 0.0f;
        sh.weight_q[buffer + group] = group < entry ? factor * dot_q : (group == entry ? dot_q : 0.0f);
        if (group == entry) sh.decay[t % 2] = factor;
      }
    }
    SyncThreads();

    if constexpr (kElements > 16 && !kStateInMemory) {
      LoadFragment<kElements, kExact>(k_row, lane, key_dim, k);
      LoadFragment<kElements, kExact>(q_row, lane, key_dim, q);
    }
    const float decay = sh.decay[t % 2];
    const float self = sh.weight_q[buffer + entry];
    const float weight_k = sh.weight_k[buffer + lane];
    const float entry_weight_q = sh.weight_q[buffer + lane];
    const float weight_q = lane == entry ? 0.0f : entry_weight_q;
    float my_u = 0.0f;
    float my_o = 0.0f;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if constexpr (!kStateInMemory) {
        state_k = Dot(s[c], k);
        state_q = Dot(s[c], q);
      }
      const float pred = GroupSum<kColumnLanes, kWave>(fmaf(weight_k, u[c], decay * state_k));
      const float read = GroupSum<kColumnLanes, kWave>(fmaf(weight_q, u[c], decay * state_q));
      const float now = beta * (v[c] - pred);
      if (lane == entry) u[c] = now;
      if (lane == c) {
        my_u = now;
        my_o = fmaf(self, now, read);
      }
    }
    if (lane < kColumns && lane < count) {
      log_u[entry * u_stride + lane] = my_u;
      p.output[(row * p.value_heads + task.head) * p.value_dim + column + lane] = my_o;
    }
    if (n < kLogCapacity && task.column_block == 0 && group == 0) {
      if (lane == 0) log_g[int64_t{n} * p.value_heads] = sh.g[n];
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
      WaveBarrier();
      if constexpr (kStateInMemory) {
        // FoldColumns an element at a time.
#pragma unroll 1
        for (int i = lane; i < (count > 0 ? key_dim : 0); i += kColumnLanes) {
          float folded = columns[i] * decay;
#pragma unroll 4
          for (int e = 0; e < kLogCapacity; ++e) {
            const float weight = sh.weight[buffer + e];
            const float entry_u = sh.u[e * kBlockColumns + group];
            folded = fmaf(weight * KeyRow(p, slot, task, first_row, log_length, since + e)[i], entry_u, folded);
          }
          columns[i] = folded;
        }
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
        StoreState<kElements, kColumns, kExact>(columns, count, lane, key_dim, s);
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

template <int kWave, int kElements, int kColumns, bool kExact>
absl::Status LaunchDecode(const DeltaRuleParams& rule, const DeviceBatch& batch, const Stream& stream) {
  constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  const DecodeArgs args{MakeDeltaRuleArgs(rule, batch, kBlockColumns), batch.log_lengths};
  const Grid grid{int64_t{batch.sequences} * args.rule.value_heads * args.rule.column_blocks};
  GDN_RETURN_IF_ERROR(Launch("delta_rule_decode", DeltaRuleDecodeKernel<kWave, kElements, kColumns, kExact>, grid,
                             kDeltaRuleThreads, stream, args));
  // One token never comes after a fold of its own call.
  if (batch.max_length <= 1) return absl::OkStatus();
  return Launch("delta_rule_append_folded_log", AppendFoldedLogKernel, {batch.sequences}, kDeltaRuleThreads, stream,
                args);
}

// Shapes that do not fill the lanes are guarded element by element, in the narrowest blocks.
template <int kWave, int kElements>
absl::Status LaunchDecodeOf(const DeltaRuleParams& rule, const DeviceBatch& batch, const Stream& stream) {
  constexpr int kMost = kMostColumns<kElements>;
  const LayerDims& dims = rule.pool.layout.dims();
  const int64_t heads = int64_t{batch.sequences} * dims.value_heads;
  const int columns = ChooseColumns(kMost, heads, dims.value_dim, stream);
  if (!ExactRule(rule, kElements, kDeltaRuleGroups * columns)) {
    constexpr int kGuarded = kInMemory<kElements, false> ? 32 : kElements;
    return LaunchDecode < kWave, kGuarded, kElements <= 8 ? 2 : 1, false > (rule, batch, stream);
  }
  return WithColumns<kMost>(columns, [&](auto chosen) {
    return LaunchDecode<kWave, kElements, decltype(chosen)::value, true>(rule, batch, stream);
  });
}

}  // namespace
}  // namespace gpu

absl::Status DeltaRuleDecodeGpu(const DeltaRuleDecodeParams& params, const gpu::DeviceBatch& batch,
                                const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateDeltaRuleDecode(params));
  if (batch.sequences == 0 || batch.tokens == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(gpu::WithWaveWidth(stream, "delta_rule_decode", [&](auto wave) {
    return gpu::WithElements<kMaxHeadDim / gpu::kColumnLanes>(
        params.rule.pool.layout.dims().key_dim, [&](auto elements) {
          return gpu::LaunchDecodeOf<decltype(wave)::value, decltype(elements)::value>(params.rule, batch, stream);
        });
  }));
  for (int32_t i = 0; i < params.rule.batch.sequences; ++i) {
    if (params.rule.batch.slots[i] < 0) continue;
    params.log_lengths[i] = (params.log_lengths[i] + params.rule.batch.length(i)) % kLogCapacity;
  }
  return absl::OkStatus();
}

}  // namespace gdn
