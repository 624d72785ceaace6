// The walk over a span's chunks, for waves of 32 (delta_rule_split_gpu.hip):
//   X = V - e^G K S      U = T diag(beta) X      S <- e^{G_C} S + K^T (e^{G_C-G} U)
// or, where decays are by channel, with keys as they were prepared, which replace each other in LDS:
//   X = V - (e^G K) S      U = T diag(beta) X      S <- diag(e^{G_C}) S + (e^{G_C-G} K)^T U
// Leaves U where O goes, and each chunk's incoming S in the workspace.
//
// Threads: a block of 128 is 32 columns of one (sequence, value head). A quarter (32 threads) owns a quarter of K: its
// rows of S in registers, 4 or 8 a lane by 4 columns, and a copy in LDS. K S is computed in tiles of 8 tokens x 4
// columns a lane over a quarter of K, whose partial sums replace the copy, which is rewritten after the update. The
// next chunk's rows are loaded while this one is computed.
// Resources: 46.3 KB of LDS for K = 128 and 230 registers; five barriers a chunk; 1.5 bytes of LDS an
// FMA.

#include "kernels/delta_rule_chunk/delta_rule_split_gpu-inl.h"

namespace gdn::gpu::split {
namespace {

template <int kKeys, bool kByChannel>
struct StatesShared {
  LdsArray<float, kC*(kKeys + 4)> k;
  LdsArray<float, kQuarters * kTile> s;  // a quarter's rows of S, then its partial sums of K S
  LdsArray<float, kTile> x;
  LdsArray<float, kTile> u;  // e^{G_C-G} U, or U
  LdsArray<float, kC * kStride> t;
  LdsArray<float, kByChannel ? kKeys : 2 * kC> decays;  // e^G and e^{G_C-G}, or e^{G_C}
};

// A lane's part of S from a head's base, and back.
template <int kVectors, bool kExact, typename Element>
__device__ __forceinline__ void LoadRows(const Element* base, int key, int column, const DeltaRuleArgs& p,
                                         float (&s)[kVectors][4][4]) {
#pragma unroll
  for (int n = 0; n < kVectors; ++n) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      Vec4 keys{0.0f, 0.0f, 0.0f, 0.0f};
      if (kExact || column + c < p.value_dim) {
        keys = LoadGuarded<kExact>(base + int64_t{column + c} * p.key_dim, key + n * 16, p.key_dim);
      }
      s[n][0][c] = keys.x;
      s[n][1][c] = keys.y;
      s[n][2][c] = keys.z;
      s[n][3][c] = keys.w;
    }
  }
}
template <int kVectors, bool kExact, typename Element>
__device__ __forceinline__ void StoreRows(Element* base, int key, int column, const DeltaRuleArgs& p,
                                          const float (&s)[kVectors][4][4]) {
#pragma unroll
  for (int n = 0; n < kVectors; ++n) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (!kExact && column + c >= p.value_dim) continue;
      StoreGuarded<kExact>(base + int64_t{column + c} * p.key_dim, key + n * 16, p.key_dim,
                           {s[n][0][c], s[n][1][c], s[n][2][c], s[n][3][c]});
    }
  }
}

template <int kKeys, bool kExact, typename Base, bool kByChannel>
// NOLINTNEXTLINE(readability-function-size): its phases share registers.
__global__ __launch_bounds__(kThreads) void DeltaRuleStatesKernel(ChunkArgs args, Span span) {
  constexpr int kVectors = kKeys / 64;  // of 4 rows of S, a lane
  constexpr int kQuarterKeys = kKeys / kQuarters;
  using Rows = StatesShared<kKeys, kByChannel>;
  constexpr int kDecays = kByChannel ? kKeys : 2 * kC;
  constexpr int kDecaysAt = kByChannel ? ChannelWorkspace::kDecay : ChunkWorkspace::kGrown;
  Rows& sh = SharedMemory<Rows>();
  const DeltaRuleArgs& p = args.rule;
  const uint32_t slices = static_cast<uint32_t>(p.column_blocks);
  const int head = static_cast<int>(blockIdx.x / slices % static_cast<uint32_t>(p.value_heads));
  const int in_span = static_cast<int>(blockIdx.x / slices / static_cast<uint32_t>(p.value_heads));
  const int sequence = span.sequence + in_span;
  const int slot = p.slots[sequence];
  const int64_t first = p.cu_seqlens[sequence];
  const int64_t length = p.cu_seqlens[sequence + 1] - first;
  const int chunks =
      min(span.chunks, static_cast<int>((length + kC - 1) / kC) - span.chunk);  // of this sequence, in this span
  if (slot < 0 || chunks <= 0) return;
  const Place place = ThisPlace();
  const int thread = static_cast<int>(threadIdx.x);
  const int slice = static_cast<int>(blockIdx.x % slices) * kSlice;
  const int column = slice + place.column;
  Base* base = HeadBase<Base>(p, slot, head);
  const int key = place.quarter * kQuarterKeys + place.row_group * 4;  // of vector 0; vector n is 16 n further

  float s[kVectors][4][4];  // [key][column]
  LoadRows<kVectors, kExact>(base, key, column, p, s);

  const int64_t start = first + int64_t{span.chunk} * kC;
  const float* k_rows = p.k + start * p.k_stride + int64_t{head / p.group} * p.key_dim;
  const float* v_rows = p.v + start * p.v_stride + int64_t{head} * p.value_dim;
  float* u_rows = p.output + (start * p.value_heads + head) * p.value_dim;
  const int64_t u_stride = int64_t{p.value_heads} * p.value_dim;
  const float* prepared = PreparedOf<kKeys, kByChannel>(args, span, first, in_span, 0, head);
  float* state = StateOf<kKeys>(span, p, in_span, 0, head);
  // X and U: rows x_row and x_row + 16 of the slice's columns from x_column on.
  const int x_row = thread / kColumnGroups;
  const int s_at = place.quarter * kTile;

  RowMover<kKeys, kExact || kByChannel> mover;
  SquareMover t_mover;
  float decay_ahead = 0.0f;
  int rows = static_cast<int>(min(int64_t{kC}, first + length - start));
  if constexpr (kByChannel) {
    mover.Fetch(prepared + ChannelWorkspace::KGrown(kKeys), kKeys, kC, kKeys);
  } else {
    mover.Fetch(k_rows, p.k_stride, rows, p.key_dim);
  }
  t_mover.Fetch(prepared + ChunkWorkspace::kT);
  if (thread < kDecays) decay_ahead = prepared[kDecaysAt + thread];
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    mover.Store(sh.k);
    t_mover.Store(sh.t);
    if (thread < kDecays) sh.decays[thread] = decay_ahead;
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Vec4 row{s[n][i][0], s[n][i][1], s[n][i][2], s[n][i][3]};
        sh.s.Store4(s_at + (place.row_group * 4 + n * 16 + i) * kSlice + place.column, row);
        Store4(state + int64_t{key + n * 16 + i} * span.value_slots + column, row);
      }
    }
    SyncThreads();

    Vec4 v[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = x_row + h * 16;
      v[h] = Vec4{0.0f, 0.0f, 0.0f, 0.0f};
      if (row < rows) v[h] = LoadGuarded<kExact>(v_rows + row * p.v_stride, column, p.value_dim);
    }
    const int rows_left = static_cast<int>(min(int64_t{kC}, length - int64_t{span.chunk + chunk + 1} * kC));
    if constexpr (kByChannel) mover.Fetch(prepared + ChannelWorkspace::KTail(kKeys), kKeys, kC, kKeys);
    prepared += int64_t{p.value_heads} * kPreparedFloats<kKeys, kByChannel>;
    k_rows += kC * p.k_stride;
    if (chunk + 1 < chunks) {
      if constexpr (!kByChannel) mover.Fetch(k_rows, p.k_stride, rows_left, p.key_dim);
      t_mover.Fetch(prepared + ChunkWorkspace::kT);
      if (thread < kDecays) decay_ahead = prepared[kDecaysAt + thread];
    }

    float read[kTileRows][4] = {};
    MultiplyTile<kQuarterKeys>(sh.k, place.quarter * kQuarterKeys, kKeys + 4, sh.s, s_at, place, read);
    WaveBarrier();
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      sh.s.Store4(s_at + (place.row_group + kRowGroups * r) * kSlice + place.column,
                  {read[r][0], read[r][1], read[r][2], read[r][3]});
    }
    SyncThreads();

    if constexpr (kByChannel) {  // nobody reads e^G K any more
      mover.Store(sh.k);
      if (chunk + 1 < chunks) mover.Fetch(prepared + ChannelWorkspace::KGrown(kKeys), kKeys, kC, kKeys);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = x_row + h * 16;
      float sum[4] = {};
#pragma unroll
      for (int quarter = 0; quarter < kQuarters; ++quarter) {
        MultiplyAdd(1.0f, sh.s.Load4(quarter * kTile + row * kSlice + place.column), sum);
      }
      float x[4] = {v[h].x, v[h].y, v[h].z, v[h].w};
      MultiplyAdd(kByChannel ? -1.0f : -sh.decays[row], {sum[0], sum[1], sum[2], sum[3]}, x);
      sh.x.Store4(row * kSlice + place.column, {x[0], x[1], x[2], x[3]});
    }
    SyncThreads();

    float u[2][4] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = x_row + h * 16;
      // Up to the last row of the quarter: the zeros above the diagonal cost less than lanes that part.
      const int depth = (place.quarter + 1) * 4 + h * 16;
#pragma unroll 2
      for (int j = 0; j < depth; j += 4) {
        const Vec4 t = sh.t.Load4(row * kStride + j);
        MultiplyAdd(t.x, sh.x.Load4(j * kSlice + place.column), u[h]);
        MultiplyAdd(t.y, sh.x.Load4((j + 1) * kSlice + place.column), u[h]);
        MultiplyAdd(t.z, sh.x.Load4((j + 2) * kSlice + place.column), u[h]);
        MultiplyAdd(t.w, sh.x.Load4((j + 3) * kSlice + place.column), u[h]);
      }
      if (row < rows) {
        StoreGuarded<kExact>(u_rows + row * u_stride, column, p.value_dim, {u[h][0], u[h][1], u[h][2], u[h][3]});
      }
      if constexpr (kByChannel) {
        sh.u.Store4(row * kSlice + place.column, {u[h][0], u[h][1], u[h][2], u[h][3]});
      } else {
        const float tail = sh.decays[kC + row];
        sh.u.Store4(row * kSlice + place.column, {u[h][0] * tail, u[h][1] * tail, u[h][2] * tail, u[h][3] * tail});
      }
    }
    const float decay = kByChannel ? 1.0f : static_cast<float>(sh.decays[kC - 1]);
    SyncThreads();

#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
      float by_key[4] = {decay, decay, decay, decay};
      if constexpr (kByChannel) Unpack4(sh.decays.Load4(key + n * 16), by_key);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) s[n][i][c] *= by_key[i];
      }
    }
#pragma unroll 4
    for (int row = 0; row < kC; ++row) {
      const Vec4 tailed = sh.u.Load4(row * kSlice + place.column);
#pragma unroll
      for (int n = 0; n < kVectors; ++n) {
        const Vec4 keys = sh.k.Load4(row * (kKeys + 4) + key + n * 16);
        MultiplyAdd(keys.x, tailed, s[n][0]);
        MultiplyAdd(keys.y, tailed, s[n][1]);
        MultiplyAdd(keys.z, tailed, s[n][2]);
        MultiplyAdd(keys.w, tailed, s[n][3]);
      }
    }
    if constexpr (kRounds<Base>) {
      if ((span.chunk + chunk + 1) * kC % kBaseRoundTokens == 0) {
#pragma unroll
        for (int n = 0; n < kVectors; ++n) RoundState<4, 4>(s[n]);
      }
    }
    SyncThreads();  // before the next chunk's rows replace these
    rows = rows_left;
    v_rows += kC * p.v_stride;
    u_rows += kC * u_stride;
    state += int64_t{p.value_heads} * kKeys * span.value_slots;
  }
  StoreRows<kVectors, kExact>(base, key, column, p, s);
}

}  // namespace

absl::Status LaunchStates(const ChunkArgs& args, const StateLayout& layout, const Span& span, bool by_channel,
                          bool exact, const Stream& stream) {
  const int64_t blocks = int64_t{span.sequences} * args.rule.value_heads * args.rule.column_blocks;
  return WithSplitKernels(args.rule.key_dim, by_channel, [&](auto keys, auto channel) {
    return WithBaseElement(layout, [&](auto element) {
      using Base = decltype(element);
      const auto kernel = exact ? DeltaRuleStatesKernel<keys(), true, Base, channel()>
                                : DeltaRuleStatesKernel<keys(), false, Base, channel()>;
      return Launch("delta_rule_states", kernel, {blocks}, kThreads, stream, args, span);
    });
  });
}

}  // namespace gdn::gpu::split
