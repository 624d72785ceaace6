// The walk over a span's chunks on matrix units (delta_rule_matrix_gpu.hip), with all matrices transposed:
//   X^T = V^T - (S^T K^T) e^G      U^T = X^T (T diag(beta))^T      S^T <- e^{G_C} S^T + (U^T e^{G_C-G}) K
// Leaves U where O goes, and each chunk's incoming S in the workspace.
//
// Threads: a block of 128 is 16 columns of one (sequence, value head); a wave is a quarter of K, whose S^T it keeps in
// registers. The four waves add their quarters of S^T K^T; each goes on with two of the chunk's tiles of 8 tokens.
// Products start from zero, and S is updated by float32 additions: units that summed into S would truncate it in each
// chunk. The next chunk's rows are copied while this one is computed.
// Resources: K = 128: 109 KB of LDS, two blocks a processor. Bound by issue slots: a chunk takes 4.2 us on an H100, of
// which matrix units work for 1.5.

#include "kernels/delta_rule_chunk/delta_rule_matrix_gpu-inl.h"

namespace gdn::gpu::matrix {
namespace {

constexpr int kThreads = 128;
constexpr int kParts = 4;  // of K, and of the chunk's tiles
constexpr int kOwnTiles = kTiles / kParts;
constexpr int kTileFloats = kWave * 4;

template <int kKeys>
struct StatesShared {
  LdsArray<float, kC*(kKeys + 8)> k[2];
  LdsArray<float, kC * kStride> t;
  LdsArray<float, 2 * kC> decays[2];                   // e^G and e^{G_C-G}
  LdsArray<float, kParts * kTiles * kTileFloats> sum;  // each wave's part of S^T K^T; then U^T e^{G_C-G}
  LdsArray<float, kTiles * kTileFloats> x;             // X^T
};

// Tile `n` (0 or 1) of a part: so chosen that all parts have as much of a triangle to do.
__device__ __forceinline__ int OwnTile(int part, int n) { return n == 0 ? part : kTiles - 1 - part; }

template <typename Tiles>
__device__ __forceinline__ void PutTile(Tiles& tiles, int tile, int lane, const float (&x)[4]) {
  tiles.Store4(tile * kTileFloats + lane * 4, {x[0], x[1], x[2], x[3]});
}
template <typename Tiles>
__device__ __forceinline__ void GetTile(Tiles& tiles, int tile, int lane, float (&x)[4]) {
  Unpack4(tiles.Load4(tile * kTileFloats + lane * 4), x);
}

template <int kKeys, bool kAligned, typename Base>
// NOLINTNEXTLINE(readability-function-size): its phases share registers.
__global__ __launch_bounds__(kThreads, 1) void DeltaRuleMatrixStatesKernel(ChunkArgs args, Span span) {
  constexpr int kKeyTiles = kKeys / 8 / kParts;  // of a wave
  constexpr int kKeyStride = kKeys + 8;
  using Rows = StatesShared<kKeys>;
  Rows& sh = LaunchedSharedMemory<Rows>();
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
  Base* base = HeadBase<Base>(p, slot, head);
  const int column_tile = static_cast<int>(blockIdx.x % slices);

  const auto for_each_element = [&](const auto& visit) {
    const Place my = ThisPlace();
    const int column = column_tile * 16 + my.g;
    const int key = my.wave * (kKeys / kParts);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int my_column = column + i / 2 * 8;
        const int my_key = key + n * 8 + my.q * 2 + i % 2;
        visit(n, i, my_column < p.value_dim && my_key < p.key_dim, base + int64_t{my_column} * p.key_dim + my_key);
      }
    }
  };
  float s[1][kKeyTiles][4];
  for_each_element([&](int n, int i, bool inside, const Base* at) { s[0][n][i] = inside ? LoadOne(at) : 0.0f; });

  const int64_t start = first + int64_t{span.chunk} * kC;
  const float* k_rows = p.k + start * p.k_stride + int64_t{head / p.group} * p.key_dim;
  const float* v_rows = p.v + start * p.v_stride + int64_t{head} * p.value_dim;
  float* u_rows = p.output + (start * p.value_heads + head) * p.value_dim;
  const int64_t u_stride = int64_t{p.value_heads} * p.value_dim;
  const float* prepared = args.workspace + WorkspaceAt(first, sequence, span.chunk, p.value_heads, head);
  const int64_t prepared_step = int64_t{p.value_heads} * Workspace::kFloats;
  float* state = StateOf<kKeys>(span, p.value_heads, in_span, 0, head);

  const auto copy_keys = [&](int chunk) {
    const int rows = static_cast<int>(min(int64_t{kC}, length - int64_t{span.chunk + chunk} * kC));
    CopyRows<kKeys, kThreads, kAligned>(sh.k[chunk % 2], k_rows + int64_t{chunk} * kC * p.k_stride, p.k_stride, rows,
                                        p.key_dim);
    const int at = static_cast<int>(threadIdx.x) * 4;
    if (at < 2 * kC) CopyAsync16(sh.decays[chunk % 2], at, prepared + chunk * prepared_step + Workspace::kGrown + at);
    CommitCopies();
  };
  const auto copy_t = [&](int chunk) {
    CopyTriangle<kThreads>(sh.t, prepared + chunk * prepared_step + Workspace::kT);
    CommitCopies();
  };
  // T's blocks above the diagonal that its products read.
  for (int row : {0, 2 * kBlock}) {
    for (int at = static_cast<int>(threadIdx.x); at < kBlockFloats; at += kThreads) {
      sh.t[(row + at / kBlock) * kStride + row + kBlock + at % kBlock] = 0.0f;
    }
  }
  copy_keys(0);
  copy_t(0);
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int rows = static_cast<int>(min(int64_t{kC}, length - int64_t{span.chunk + chunk} * kC));
    auto& keys = sh.k[chunk % 2];
    auto& decays = sh.decays[chunk % 2];
    WaitForCopies<0>();
    SyncThreads();
    if (chunk + 1 < chunks) copy_keys(chunk + 1);

    // Anew for each chunk, because the addresses that follow from it would take all registers.
    const Place my = ThisPlace();
    const int part = my.wave;                    // of the keys, and of the tiles of tokens
    const int column = column_tile * 16 + my.g;  // and 8 further
    const int key = part * (kKeys / kParts);
    float x[kOwnTiles][4];
#pragma unroll
    for (int n = 0; n < kOwnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = OwnTile(part, n) * 8 + my.q * 2 + i % 2;
        const int my_column = column + i / 2 * 8;
        const float* v = At(v_rows, token * static_cast<uint32_t>(p.v_stride) + my_column);
        x[n][i] = token < rows && my_column < p.value_dim ? *v : 0.0f;
      }
    }
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      Store4(state + StateTile<kKeys>(column_tile, key / 8 + n) + my.lane * 4,
             {s[0][n][0], s[0][n][1], s[0][n][2], s[0][n][3]});
    }

    // S^T K^T of the wave's keys.
    {
      float sum[1][kTiles][4] = {};
      MultiplyTerms<kKeyTiles>(
          [&](int step, int, float(&a)[4]) {
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = s[0][step][i];
          },
          [&](int step, int n) { return keys.Load2((n * 8 + my.g) * kKeyStride + key + step * 8 + my.q * 2); }, sum);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) PutTile(sh.sum, my.wave * kTiles + n, my.lane, sum[0][n]);
    }
    SyncThreads();
#pragma unroll
    for (int n = 0; n < kOwnTiles; ++n) {
      const int tile = OwnTile(part, n);
      float sum[4] = {};
#pragma unroll
      for (int of_part = 0; of_part < kParts; ++of_part) {
        float read[4];
        GetTile(sh.sum, of_part * kTiles + tile, my.lane, read);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] += read[i];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) x[n][i] = fmaf(-decays[tile * 8 + my.q * 2 + i % 2], sum[i], x[n][i]);
      PutTile(sh.x, tile, my.lane, x[n]);
    }
    SyncThreads();

    // Columns 2 q and 2 q + 1 of these sums are the tile's tokens q and 4 + (q ^ 2), so that lanes read K from
    // different banks below.
    const int odd = 4 + (my.q ^ 2);
    float u[1][kOwnTiles][4] = {};
    MultiplyTerms<kTiles>([&](int step, int, float(&a)[4]) { GetTile(sh.x, step, my.lane, a); },
                          [&](int step, int n) {
                            const int token = OwnTile(part, n) * 8 + (my.g % 2 == 0 ? my.g / 2 : 4 + (my.g / 2 ^ 2));
                            return sh.t.Load2(token * kStride + step * 8 + my.q * 2);
                          },
                          [](int step, int n) { return n > 0 || step < kParts; }, u);
#pragma unroll
    for (int n = 0; n < kOwnTiles; ++n) {
      const int tile = OwnTile(part, n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = tile * 8 + (i % 2 == 0 ? my.q : odd);
        const int my_column = column + i / 2 * 8;
        float* to = At(u_rows, token * static_cast<uint32_t>(u_stride) + my_column);
        if (token < rows && my_column < p.value_dim) *to = u[0][n][i];
        u[0][n][i] *= decays[kC + token];
      }
      PutTile(sh.sum, tile, my.lane, u[0][n]);
    }
    SyncThreads();
    if (chunk + 1 < chunks) copy_t(chunk + 1);

    const float decay = decays[kC - 1];
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[0][n][i] *= decay;
    }
    MultiplyTerms<kTiles>([&](int step, int, float(&a)[4]) { GetTile(sh.sum, step, my.lane, a); },
                          [&](int step, int n) {
                            const int at = step * 8 * kKeyStride + key + n * 8 + my.g;
                            return Vec2{keys[at + my.q * kKeyStride], keys[at + odd * kKeyStride]};
                          },
                          s);
    if constexpr (kRounds<Base>) {
      static_assert(kBaseRoundTokens == kC);
      RoundState<4, kKeyTiles>(s[0]);
    }
    v_rows += kC * p.v_stride;
    u_rows += kC * u_stride;
    state += int64_t{p.value_heads} * kKeys * span.value_slots;
  }
  for_each_element([&](int n, int i, bool inside, Base* at) {
    if (inside) StoreOne(at, s[0][n][i]);
  });
}

}  // namespace

absl::Status LaunchStates(const ChunkArgs& args, const StateLayout& layout, const Span& span, bool aligned,
                          const Stream& stream) {
  Grid grid{int64_t{span.sequences} * args.rule.value_heads * args.rule.column_blocks};
  return WithKeys(args.rule.key_dim, [&](auto keys) {
    grid.lds_bytes = sizeof(StatesShared<keys()>);
    return WithBaseElement(layout, [&](auto element) {
      using Base = decltype(element);
      const auto kernel =
          aligned ? DeltaRuleMatrixStatesKernel<keys(), true, Base> : DeltaRuleMatrixStatesKernel<keys(), false, Base>;
      return Launch("delta_rule_matrix_states", kernel, grid, kThreads, stream, args, span);
    });
  });
}

}  // namespace gdn::gpu::matrix
