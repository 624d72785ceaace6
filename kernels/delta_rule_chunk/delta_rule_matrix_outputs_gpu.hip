// The outputs of all chunks of a span at once, on matrix units (delta_rule_matrix_gpu.hip), with all matrices
// transposed:
//   O^T = (S^T Q^T) e^G + U^T P^T
// from the chunks' incoming S in the workspace, and U where O goes.
//
// Threads: a block of 128 is a chunk's 64 tokens by 64 columns of one value head, a wave 32 columns by four tiles of 8
// tokens. Factors pass through LDS, 64 keys of Q and S at a time and then P and U, each copied while the one before is
// multiplied.
// Resources: 72 KB of LDS, three blocks a processor.

#include "kernels/delta_rule_chunk/delta_rule_matrix_gpu-inl.h"

namespace gdn::gpu::matrix {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 64;  // of a block
constexpr int kOwnTiles = kTiles / 2;
constexpr int kPanel = 64;              // keys at a time
constexpr int kUStride = kColumns + 4;  // so that lanes read U from different banks
constexpr int kFactorFloats = kC * kUStride;

struct OutputsShared {
  LdsArray<float, kC * kStride> rows[2];     // Q or P
  LdsArray<float, kFactorFloats> factor[2];  // S, tiles of 8 keys within tiles of 16 columns; or U [C][kUStride]
};
static_assert(kFactorFloats >= kColumns * kPanel);

template <int kKeys, bool kAligned>
// NOLINTNEXTLINE(readability-function-size): its phases share registers.
__global__ __launch_bounds__(kThreads, kKeys == 64 ? 2 : 3) void DeltaRuleMatrixOutputsKernel(ChunkArgs args,
                                                                                              Span span) {
  constexpr int kPanels = kKeys / kPanel;  // of Q
  OutputsShared& sh = LaunchedSharedMemory<OutputsShared>();
  const DeltaRuleArgs& p = args.rule;
  const uint32_t parts = static_cast<uint32_t>((p.value_dim + kColumns - 1) / kColumns);
  uint32_t rest = blockIdx.x;
  const int block_column = static_cast<int>(rest % parts) * kColumns;
  rest /= parts;
  const int head = static_cast<int>(rest % static_cast<uint32_t>(p.value_heads));
  rest /= static_cast<uint32_t>(p.value_heads);
  const int chunk = static_cast<int>(rest % static_cast<uint32_t>(span.chunks));
  const int in_span = static_cast<int>(rest / static_cast<uint32_t>(span.chunks));
  const int sequence = span.sequence + in_span;
  const int64_t first = p.cu_seqlens[sequence];
  const int64_t start = first + int64_t{span.chunk + chunk} * kC;
  const int rows = static_cast<int>(min(int64_t{kC}, p.cu_seqlens[sequence + 1] - start));
  if (rows <= 0) return;
  const Place my = ThisPlace();
  const int part = my.wave % 2;  // of the tiles of tokens
  const int wave_column = block_column + my.wave / 2 * 32;
  const int column = wave_column + my.g;  // and 8, 16, 24 further
  float* o_rows = p.output + (start * p.value_heads + head) * p.value_dim;
  const int64_t o_stride = int64_t{p.value_heads} * p.value_dim;
  const bool lives = p.slots[sequence] >= 0;

  float o[2][kOwnTiles][4] = {};
  if (lives) {
    const float* prepared = args.workspace + WorkspaceAt(first, sequence, span.chunk + chunk, p.value_heads, head);
    const float* state = StateOf<kKeys>(span, p.value_heads, in_span, chunk, head);
    const float* q_rows = p.q + start * p.q_stride + int64_t{head / p.group} * p.key_dim;
    const auto copy_panel = [&](int panel) {
      auto& factor = sh.factor[panel % 2];
      const int thread = static_cast<int>(NotHoisted(threadIdx.x));
      if (panel < kPanels) {
        CopyRows<kPanel, kThreads, kAligned>(sh.rows[panel % 2], q_rows + panel * kPanel, p.q_stride, rows,
                                             p.key_dim - panel * kPanel);
#pragma unroll
        for (int n = 0; n < kColumns * kPanel / 4 / kThreads; ++n) {
          const int i = n * kThreads + thread;
          const int tile = i / (kPanel * 4);  // of 16 columns
          const bool inside = block_column + tile * 16 < span.value_slots;
          CopyAsync16(
              factor, i * 4,
              At(state, StateTile<kKeys>(block_column / 16 + tile, panel * (kPanel / 8)) + i % (kPanel * 4) * 4),
              inside);
        }
      } else if (panel == kPanels) {
        CopyTriangle<kThreads>(sh.rows[panel % 2], prepared + Workspace::kP);
#pragma unroll
        for (int n = 0; n < kC * kColumns / 4 / kThreads; ++n) {
          const int i = n * kThreads + thread;
          const int row = i / (kColumns / 4);
          const int at = i % (kColumns / 4) * 4;
          const int left = row < rows ? p.value_dim - block_column - at : 0;
          const float* u = At(o_rows, row * static_cast<uint32_t>(o_stride) + block_column + at);
          if constexpr (kAligned) {
            CopyAsync16(factor, row * kUStride + at, u, left > 0);
          } else {
            factor.Store4(row * kUStride + at, LoadSome(u, left, /*aligned=*/false));
          }
        }
      }
      CommitCopies();
    };
    copy_panel(0);
    copy_panel(1);
    const int wave_tile = my.wave / 2 * 2;  // of 16 columns, in the block
#pragma unroll 1
    for (int panel = 0; panel < kPanels; ++panel) {
      WaitForCopies<1>();
      SyncThreads();
      MultiplyTerms<kPanel / 8>(
          [&](int step, int m, float(&a)[4]) {
            Unpack4(sh.factor[panel % 2].Load4(((wave_tile + m) * (kPanel / 8) + step) * kWave * 4 + my.lane * 4), a);
          },
          [&](int step, int n) {
            return sh.rows[panel % 2].Load2((TileOf(part, n) * 8 + my.g) * kStride + step * 8 + my.q * 2);
          },
          o);
      SyncThreads();
      copy_panel(panel + 2);
    }
    WaitForCopies<1>();
    SyncThreads();
#pragma unroll
    for (int n = 0; n < kOwnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float grown = prepared[Workspace::kGrown + TileOf(part, n) * 8 + my.q * 2 + i];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          o[m][n][i] *= grown;
          o[m][n][2 + i] *= grown;
        }
      }
    }
    MultiplyTerms<kTiles>(
        [&](int step, int m, float(&a)[4]) {
          const int at = (step * 8 + my.q * 2) * kUStride + (wave_tile + m) * 16 + my.g;
#pragma unroll
          for (int i = 0; i < 4; ++i) a[i] = sh.factor[kPanels % 2][at + i % 2 * kUStride + i / 2 * 8];
        },
        [&](int step, int n) {
          return sh.rows[kPanels % 2].Load2((TileOf(part, n) * 8 + my.g) * kStride + step * 8 + my.q * 2);
        },
        [](int step, int n) { return step / 2 <= n; }, o);
    WaitForCopies<0>();
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < kOwnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = TileOf(part, n) * 8 + my.q * 2 + i % 2;
        const int my_column = column + m * 16 + i / 2 * 8;
        float* to = At(o_rows, token * static_cast<uint32_t>(o_stride) + my_column);
        if (token < rows && my_column < p.value_dim) *to = o[m][n][i];
      }
    }
  }
}

}  // namespace

absl::Status LaunchOutputs(const ChunkArgs& args, const Span& span, bool aligned, const Stream& stream) {
  const int64_t parts = CeilDivide(args.rule.value_dim, kColumns);
  const Grid grid{.x = int64_t{span.sequences} * args.rule.value_heads * span.chunks * parts,
                  .lds_bytes = sizeof(OutputsShared)};
  return WithKeys(args.rule.key_dim, [&](auto keys) {
    const auto kernel =
        aligned ? DeltaRuleMatrixOutputsKernel<keys(), true> : DeltaRuleMatrixOutputsKernel<keys(), false>;
    return Launch("delta_rule_matrix_outputs", kernel, grid, kThreads, stream, args, span);
  });
}

}  // namespace gdn::gpu::matrix
