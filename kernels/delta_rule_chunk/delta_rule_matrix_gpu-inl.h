// The chunked delta rule on matrix units (delta_rule_matrix_gpu.hip): a chunk's workspace, products at float32's
// accuracy, and copies into LDS.
//
// A float is the sum of two numbers of TF32, high and low, but for 2^-23 of it. A product is high high + high low + low
// high, which errs by 2^-22. Matrix units truncate their sums, so a sum of the large products is taken from zero every
// four steps and added by a float32 addition; the small products have sums of their own, whose truncation is as small.
// A sum as MmaTf32 leaves it is a left factor as MmaTf32 takes it, if a step's columns 2 q and 2 q + 1 are numbered q
// and q + 4. So what one product computes is the next one's left factor without a move between lanes, and right factors
// are loaded in pairs.
// Thread safety: every lane of a wave takes part. For *_gpu.hip files only, for waves of 32.
//
//   float sum[1][4][4] = {};
//   MultiplyTerms<8>([&](int step, int m, float(&x)[4]) { ... }, [&](int step, int n) { return Vec2{..}; }, sum);
#pragma once

#include "kernels/delta_rule_chunk/chunk_workspace_gpu-inl.h"
#include "kernels/gpu/vec4_math.h"

namespace gdn::gpu::matrix {

inline constexpr int kC = kMatrixChunkTokens;
inline constexpr int kWave = 32;
inline constexpr int kTiles = kC / 8;   // tiles of 8 tokens
inline constexpr int kStride = kC + 8;  // of LDS rows of 64 floats, read in pairs by 8 rows at once
inline constexpr int kBlock = 16;       // T and P are lower triangles of blocks of 16 x 16, rows of blocks in order
inline constexpr int kBlocks = kC / kBlock;
inline constexpr int kBlockFloats = kBlock * kBlock;
inline constexpr int kTriangle = kBlocks * (kBlocks + 1) / 2 * kBlockFloats;

__host__ __device__ constexpr int BlockAt(int row, int column) { return row * (row + 1) / 2 + column; }

// The first kernel's results for a chunk and value head. T, P, grown and tail are those of ChunkWorkspace.
struct Workspace {
  static constexpr int kT = 0;
  static constexpr int kP = kTriangle;
  static constexpr int kGrown = 2 * kTriangle;
  static constexpr int kTail = kGrown + kC;
  static constexpr int kFloats = kTail + kC;
};
__host__ __device__ __forceinline__ int64_t WorkspaceAt(int64_t first_row, int32_t sequence, int64_t chunk,
                                                        int32_t value_heads, int32_t head) {
  return ((first_row / kC + sequence + chunk) * value_heads + head) * Workspace::kFloats;
}

// A lane's place in its wave, as MmaTf32 names it, and its wave's number in the block.
struct Place {
  int wave, lane, g, q;
};
__device__ __forceinline__ Place ThisPlace() {
  const int thread = static_cast<int>(NotHoisted(threadIdx.x));
  const int lane = thread % kWave;
  return {thread / kWave, lane, lane / 4, lane % 4};
}

// Tile `n` (0 to 3) of 8 tokens of wave `part` (0 or 1), if two waves share a chunk: 0, 3, 4, 7 or 1, 2, 5, 6. So both
// have as much of a triangle to do.
__device__ __forceinline__ int TileOf(int part, int n) { return 2 * n + ((n & 1) ^ part); }

template <int kWords>
struct Terms {
  uint32_t high[kWords], low[kWords];
};
// Sets `high` to ToTf32(x) without the cases of infinity and NaN: for both, `low` is a NaN. Units read the upper bits
// of `low` alone, which are all but one of its bits.
template <int kWords>
__device__ __forceinline__ void SetTerm(Terms<kWords>& terms, int word, float x) {
  terms.high[word] = (FloatToBits(x) + 0x1000u) & 0xffffe000u;
  terms.low[word] = FloatToBits(x - BitsToFloat(terms.high[word]));
}
__device__ __forceinline__ Terms<4> LeftTerms(const float (&x)[4]) {
  Terms<4> terms;
  SetTerm(terms, 0, x[0]);
  SetTerm(terms, 1, x[2]);
  SetTerm(terms, 2, x[1]);
  SetTerm(terms, 3, x[3]);
  return terms;
}
__device__ __forceinline__ Terms<2> RightTerms(const Vec2& x) {
  Terms<2> terms;
  SetTerm(terms, 0, x.x);
  SetTerm(terms, 1, x.y);
  return terms;
}

// sum[m][n] += the product of `kSteps` steps of 8, for tiles m of 16 rows and n of 8 columns. left(step, m, x) sets x
// as a lane holds a sum: rows g, g, g + 8, g + 8 at columns 2 q, 2 q + 1, 2 q, 2 q + 1 of the step. right(step, n)
// returns the step's rows 2 q and 2 q + 1 at column g. takes(step, n) is false, for all lanes, if the product is zero.
template <int kSteps, int kM, int kN, typename Left, typename Right, typename Takes>
__device__ __forceinline__ void MultiplyTerms(const Left& left, const Right& right, const Takes& takes,
                                              float (&sum)[kM][kN][4]) {
  constexpr int kPromoted = 4;                  // steps whose large products are summed by the units
  constexpr int kSmall = kM * kN <= 2 ? 2 : 1;  // sums of small products, so that few tiles need not wait for theirs
  float small[kSmall][kM][kN][4] = {};
#pragma unroll
  for (int first = 0; first < kSteps; first += kPromoted) {
    float large[kM][kN][4] = {};
#pragma unroll
    for (int step = first; step < first + kPromoted && step < kSteps; ++step) {
      Terms<2> b[kN];
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        if (takes(step, n)) b[n] = RightTerms(right(step, n));
      }
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        float x[4];
        left(step, m, x);
        const Terms<4> a = LeftTerms(x);
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          if (takes(step, n)) MmaTf32<kWave>(small[0][m][n], a.low, b[n].high);
        }
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          if (takes(step, n)) MmaTf32<kWave>(large[m][n], a.high, b[n].high);
        }
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          if (takes(step, n)) MmaTf32<kWave>(small[kSmall - 1][m][n], a.high, b[n].low);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        if (!takes(first, n)) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[m][n][i] += large[m][n][i];
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[m][n][i] += kSmall == 1 ? small[0][m][n][i] : small[0][m][n][i] + small[1][m][n][i];
      }
    }
  }
}
template <int kSteps, int kM, int kN, typename Left, typename Right>
__device__ __forceinline__ void MultiplyTerms(const Left& left, const Right& right, float (&sum)[kM][kN][4]) {
  MultiplyTerms<kSteps>(
      left, right, [](int, int) { return true; }, sum);
}

// Copies columns [0, kColumns) of a chunk's rows to LDS rows of kColumns + 8; zero from `columns` and from row `rows`
// on. kAligned: `from`, `stride` and `columns` are multiples of 4 floats, and the copies are asynchronous.
template <int kColumns, int kThreads, bool kAligned, typename Rows>
__device__ __forceinline__ void CopyRows(Rows& to, const float* from, int64_t stride, int rows, int columns) {
  constexpr int kPieces = kColumns / 4;
  const int thread = static_cast<int>(NotHoisted(threadIdx.x));
#pragma unroll
  for (int n = 0; n < kC * kPieces / kThreads; ++n) {
    const int i = n * kThreads + thread;
    const int row = i / kPieces;
    const int at = i % kPieces * 4;
    const int to_at = row * (kColumns + 8) + at;
    const float* piece = At(from, row * static_cast<uint32_t>(stride) + at);
    if constexpr (kAligned) {
      CopyAsync16(to, to_at, piece, row < rows && at < columns);
    } else {
      Vec4 x{0.0f, 0.0f, 0.0f, 0.0f};
      if (row < rows) x = LoadSome(piece, columns - at, /*aligned=*/false);
      to.Store4(to_at, x);
    }
  }
}
// Copies T or P from the workspace to LDS rows of kStride. What lies above the diagonal's blocks is left alone.
template <int kThreads, typename Square>
__device__ __forceinline__ void CopyTriangle(Square& to, const float* from) {
  const int thread = static_cast<int>(NotHoisted(threadIdx.x));
#pragma unroll
  for (int n = 0; n * kThreads < kTriangle / 4; ++n) {
    const int i = n * kThreads + thread;
    if (i >= kTriangle / 4) break;
    const int block = i / (kBlockFloats / 4);
    const int row = (block >= BlockAt(1, 0)) + (block >= BlockAt(2, 0)) + (block >= BlockAt(3, 0));
    const int column = block - BlockAt(row, 0);
    CopyAsync16(to, (row * kBlock + i % (kBlockFloats / 4) / 4) * kStride + column * kBlock + i % 4 * 4, from + i * 4);
  }
}

// S before chunk `chunk` of the span: tiles of 16 columns x 8 keys, all keys of the first 16 columns first; a tile has
// for each lane the four floats of a sum, S transposed.
template <int kKeys>
__device__ __forceinline__ float* StateOf(const Span& span, int value_heads, int sequence, int chunk, int head) {
  const int64_t block = (int64_t{sequence} * span.chunks + chunk) * value_heads + head;
  return span.states + block * kKeys * span.value_slots;
}
template <int kKeys>
__device__ __forceinline__ int StateTile(int columns, int keys) {
  return (columns * (kKeys / 8) + keys) * kWave * 4;
}

// Launch the three kernels. `aligned`: rows of q and k, and of the output, are whole 16 bytes. LaunchPrepare does all
// chunks of the batch, the others those of a span.
absl::Status LaunchPrepare(const ChunkArgs& args, const DeviceBatch& batch, bool aligned, const Stream& stream);
absl::Status LaunchStates(const ChunkArgs& args, const StateLayout& layout, const Span& span, bool aligned,
                          const Stream& stream);
absl::Status LaunchOutputs(const ChunkArgs& args, const Span& span, bool aligned, const Stream& stream);

// Calls launch(kKeys) with KeySlots(K), for K up to 128, as an integral constant and returns its result.
template <typename Launcher>
absl::Status WithKeys(int32_t key_dim, const Launcher& launch) {
  return KeySlots(key_dim) == 64 ? launch(std::integral_constant<int, 64>())
                                 : launch(std::integral_constant<int, 128>());
}

}  // namespace gdn::gpu::matrix
