// Running sums along tokens on the GPU, over everything or anew in every chunk.
//
// A block of 256 threads is kGroups x kColumns: a thread takes 8 tokens on end of one feature, the groups' sums are
// scanned in LDS (log2(kGroups) steps), and a chunk's first token cuts the sum off. Scalar: 256 x 1, a tile of 2048
// tokens. Vector: 8 x 32, a tile of 64 tokens of 32 features. Where sums reach across tiles: pass 1 writes each tile's
// last sum, pass 2 (a block for its features, the same scan over tiles) makes of them what precedes each tile, pass 3
// scans the tiles on top of that. Resources: 2 KB LDS. Bound by memory: x is read twice where tiles hand on, else once.

#include "base/status_macros.h"
#include "kernels/common/contract.h"
#include "kernels/gpu/launch.h"
#include "kernels/primitives/cumsum/cumsum.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;  // tokens of a thread

// Columns: features of a block.
template <int kColumns>
struct Mapping {
  static constexpr int kGroups = kThreads / kColumns;
  static constexpr int kTile = kGroups * kEach;
};
static_assert(Mapping<1>::kTile == kCumsumScalarTile);
static_assert(Mapping<32>::kTile == kCumsumVectorTile);

struct Shared {
  LdsArray<double, kThreads> sums;
};

// Whether a chunk begins at one of items begin .. end - 1, an item being `span` tokens. In 32 bits, for the division's
// sake; kMaxCumsumTokens leaves room.
__device__ __forceinline__ bool ChunkBegins(int64_t begin, int64_t end, uint32_t span, int64_t chunk) {
  if (chunk == 0) return false;
  const uint32_t tokens = static_cast<uint32_t>(chunk);
  const uint32_t next = (static_cast<uint32_t>(begin) * span + tokens - 1) / tokens * tokens;
  return next < static_cast<uint32_t>(end) * span;
}

// In: a thread's sum since the last chunk began among its items. Out: the sum since the last chunk began up to the end
// of its items, over all groups of the tile. `first` is the tile's first item.
template <int kColumns>
__device__ __forceinline__ double ScanGroups(Shared& s, double sum, int64_t first, uint32_t span, int64_t chunk) {
  const int thread = threadIdx.x;
  const int group = thread / kColumns;
  const int64_t end = first + int64_t{group + 1} * kEach;
#pragma unroll
  for (int distance = 1; distance < Mapping<kColumns>::kGroups; distance *= 2) {
    s.sums[thread] = sum;
    SyncThreads();
    // Items of this thread's sum so far: the last `distance` groups. Where a chunk begins among them it ends there.
    if (group >= distance && !ChunkBegins(end - int64_t{distance} * kEach, end, span, chunk)) {
      const double before = s.sums[thread - distance * kColumns];
      sum += before;
    }
    SyncThreads();
  }
  return sum;
}

// What lies before a thread's items, given each group's ScanGroups result; 0 in the first group.
template <int kColumns>
__device__ __forceinline__ double SumBefore(Shared& s, double scanned) {
  const int thread = threadIdx.x;
  s.sums[thread] = scanned;
  SyncThreads();
  double before = 0.0;
  if (thread >= kColumns) before = s.sums[thread - kColumns];
  return before;
}

template <int kColumns>
__device__ __forceinline__ int64_t Feature() {
  return int64_t{blockIdx.y} * kColumns + threadIdx.x % kColumns;
}
template <int kColumns>
__device__ __forceinline__ int64_t FirstOfThread(int64_t first) {
  return first + int64_t{threadIdx.x / kColumns} * kEach;
}

// The thread's tokens, 0 where there are none, and their sum since the last chunk began among them.
__device__ __forceinline__ double LoadTokens(const CumsumParams& p, int64_t token, int64_t feature, float (&x)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const bool there = token + i < p.tokens && feature < p.features;
    x[i] = there ? p.x[(token + i) * p.features + feature] : 0.0f;
  }
  double sum = 0.0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (ChunkBegins(token + i, token + i + 1, 1, p.chunk)) sum = 0.0;
    sum += static_cast<double>(x[i]);
  }
  return sum;
}

template <int kColumns>
__global__ __launch_bounds__(kThreads) void TileSumsKernel(CumsumParams p) {
  Shared& s = SharedMemory<Shared>();
  const int64_t first = int64_t{blockIdx.x} * Mapping<kColumns>::kTile;
  const int64_t feature = Feature<kColumns>();
  float x[kEach];
  double sum = LoadTokens(p, FirstOfThread<kColumns>(first), feature, x);
  sum = ScanGroups<kColumns>(s, sum, first, 1, p.chunk);
  if (threadIdx.x >= kThreads - kColumns && feature < p.features) p.workspace[blockIdx.x * p.features + feature] = sum;
}

// In place: from each tile's last sum to what precedes the tile.
template <int kColumns>
__global__ __launch_bounds__(kThreads) void TileOffsetsKernel(CumsumParams p, int64_t tiles) {
  Shared& s = SharedMemory<Shared>();
  constexpr int kStep = Mapping<kColumns>::kTile;
  constexpr uint32_t kSpan = Mapping<kColumns>::kTile;  // tokens of an item, which is a tile here
  const int64_t feature = Feature<kColumns>();
  double carried = 0.0;  // of all tiles before this step's
  for (int64_t first = 0; first < tiles; first += kStep) {
    const int64_t tile = FirstOfThread<kColumns>(first);
    double x[kEach];
    double sum = 0.0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool there = tile + i < tiles && feature < p.features;
      x[i] = there ? p.workspace[(tile + i) * p.features + feature] : 0.0;
      sum = ChunkBegins(tile + i, tile + i + 1, kSpan, p.chunk) ? x[i] : sum + x[i];
    }
    const double scanned = ScanGroups<kColumns>(s, sum, first, kSpan, p.chunk);
    double before = SumBefore<kColumns>(s, scanned);
    if (!ChunkBegins(first, tile, kSpan, p.chunk)) before += carried;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (tile + i < tiles && feature < p.features) p.workspace[(tile + i) * p.features + feature] = before;
      before = ChunkBegins(tile + i, tile + i + 1, kSpan, p.chunk) ? x[i] : before + x[i];
    }
    const double last = s.sums[kThreads - kColumns + threadIdx.x % kColumns];
    carried = ChunkBegins(first, first + kStep, kSpan, p.chunk) ? last : last + carried;
    SyncThreads();
  }
}

template <int kColumns>
__global__ __launch_bounds__(kThreads) void CumsumKernel(CumsumParams p, bool offsets) {
  Shared& s = SharedMemory<Shared>();
  const int64_t first = int64_t{blockIdx.x} * Mapping<kColumns>::kTile;
  const int64_t token = FirstOfThread<kColumns>(first);
  const int64_t feature = Feature<kColumns>();
  float x[kEach];
  double sum = LoadTokens(p, token, feature, x);
  sum = SumBefore<kColumns>(s, ScanGroups<kColumns>(s, sum, first, 1, p.chunk));
  if (offsets && feature < p.features && !ChunkBegins(first, token, 1, p.chunk)) {
    sum += p.workspace[blockIdx.x * p.features + feature];
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (ChunkBegins(token + i, token + i + 1, 1, p.chunk)) sum = 0.0;
    sum += static_cast<double>(x[i]);
    if (token + i < p.tokens && feature < p.features) p.y[(token + i) * p.features + feature] = static_cast<float>(sum);
  }
}

template <int kColumns>
absl::Status LaunchCumsum(const CumsumParams& params, const Stream& stream) {
  const int64_t tiles = CeilDivide(params.tokens, Mapping<kColumns>::kTile);
  const int64_t feature_blocks = CeilDivide(params.features, kColumns);
  const bool offsets = CumsumWorkspaceBytes(params) > 0;
  if (offsets) {
    GDN_RETURN_IF_ERROR(RequirePointer("Cumsum", "workspace", params.workspace));
    GDN_RETURN_IF_ERROR(
        Launch("cumsum_tile_sums", TileSumsKernel<kColumns>, {tiles, feature_blocks}, kThreads, stream, params));
    GDN_RETURN_IF_ERROR(Launch("cumsum_tile_offsets", TileOffsetsKernel<kColumns>, {1, feature_blocks}, kThreads,
                               stream, params, tiles));
  }
  return Launch("cumsum", CumsumKernel<kColumns>, {tiles, feature_blocks}, kThreads, stream, params, offsets);
}

}  // namespace
}  // namespace gpu

absl::Status CumsumGpu(const CumsumParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateCumsum(params));
  return params.features == 1 ? gpu::LaunchCumsum<1>(params, stream) : gpu::LaunchCumsum<32>(params, stream);
}

}  // namespace gdn
