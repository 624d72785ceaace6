// The stages that make a chunk's C x C matrices and its decay sums.
//
//   G_i = sum_{j<=i} clamped g_j      A_ij = beta_i (k_i.k_j) e^{G_i-G_j}, j < i
//   D_ij = e^{G_i-G_j}, P_ij = (q_i.k_j) e^{G_i-G_j}, j <= i
//
// Threads: a block has a (chunk, value head). Decay sums: a doubling scan of C doubles in LDS. Products: 256 threads as
// 16 x 16, each with every 16th row and column, 32 features of K at a time in LDS. Resources: LDS up to 19 KB. A
// product's sum runs over rising features, the scan's tree depends on C alone.

#include "base/status_macros.h"
#include "kernels/common/log_decay_gpu-inl.h"
#include "kernels/gpu/launch.h"
#include "kernels/primitives/delta_rule_stages/chunk_stage.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kScoreThreads = 256;
constexpr int kSide = 16;  // threads along each side of a matrix
constexpr int kMaskThreads = 256;

enum class Score { kKkt, kCumsumKkt, kAttention };

// One struct for the three, so that there is one kernel.
struct ScoreParams {
  ChunkedBatch batch;
  const float* rows = nullptr;     // k or q
  const float* columns = nullptr;  // k
  int64_t row_stride = 0;
  int64_t column_stride = 0;
  const float* g = nullptr;
  const float* beta = nullptr;
  const double* g_sum = nullptr;
  double* g_sum_out = nullptr;
  float* out = nullptr;
};

template <int kC, Score kScore>
struct ScoreShared {
  LdsArray<float, kC * kTileStride> rows;
  LdsArray<float, kScore == Score::kAttention ? kC * kTileStride : 4> columns;
  LdsArray<double, kC> g_sum;
};

struct DecayShared {
  LdsArray<double, 64> g_sum;
};

// g_sum[i] = sum of the chunk's g up to token i. Every thread of the block takes part; ends with a barrier.
template <int kC, typename Array>
__device__ __forceinline__ void SumDecays(Array& g_sum, const float* g, int64_t stride, int rows) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < kC) g_sum[i] = i < rows ? static_cast<double>(ClampLogDecay(g[i * stride])) : 0.0;
  SyncThreads();
  for (int distance = 1; distance < kC; distance *= 2) {
    double before = 0.0;
    if (i < kC && i >= distance) before = g_sum[i - distance];
    SyncThreads();
    if (i < kC && i >= distance) g_sum[i] += before;
    SyncThreads();
  }
}

template <int kC>
__global__ __launch_bounds__(64) void ChunkDecaySumsKernel(ChunkDecaySumsParams p) {
  DecayShared& s = SharedMemory<DecayShared>();
  const int heads = p.batch.dims.value_heads;
  const Chunk chunk = FindChunk(p.batch, blockIdx.x / heads);
  const int64_t at = chunk.first * heads + blockIdx.x % heads;
  SumDecays<kC>(s.g_sum, p.g + at, heads, chunk.rows);
  const int i = static_cast<int>(threadIdx.x);
  if (i < chunk.rows) p.g_sum[at + int64_t{i} * heads] = s.g_sum[i];
}

template <int kC, Score kScore>
__global__ __launch_bounds__(kScoreThreads) void ScoreKernel(ScoreParams p) {
  constexpr int kTile = kC / kSide;
  constexpr bool kSame = kScore != Score::kAttention;  // both operands are K
  using Shared = ScoreShared<kC, kScore>;
  Shared& s = SharedMemory<Shared>();
  const int heads = p.batch.dims.value_heads;
  const int key_dim = p.batch.dims.key_dim;
  const int head = static_cast<int>(blockIdx.x % heads);
  const int key_head = head / (heads / p.batch.dims.key_heads);
  const Chunk chunk = FindChunk(p.batch, blockIdx.x / heads);
  const int thread = static_cast<int>(threadIdx.x);
  const int thread_row = thread / kSide;
  const int thread_column = thread % kSide;
  const int64_t gate = chunk.first * heads + head;
  const bool decays = kScore == Score::kCumsumKkt || p.g_sum != nullptr;

  if constexpr (kScore == Score::kCumsumKkt) {
    SumDecays<kC>(s.g_sum, p.g + gate, heads, chunk.rows);
    if (thread < chunk.rows) p.g_sum_out[gate + int64_t{thread} * heads] = s.g_sum[thread];
  } else if (thread < kC) {
    s.g_sum[thread] = decays && thread < chunk.rows ? p.g_sum[gate + int64_t{thread} * heads] : 0.0;
  }

  const float* rows = p.rows + chunk.first * p.row_stride + int64_t{key_head} * key_dim;
  const float* columns = p.columns + chunk.first * p.column_stride + int64_t{key_head} * key_dim;
  const bool rows_aligned = RowsAligned(rows, p.row_stride);
  const bool columns_aligned = RowsAligned(columns, p.column_stride);
  float sum[kTile][kTile] = {};
  for (int feature = 0; feature < key_dim; feature += kTileFeatures) {
    LoadTile<kC, kScoreThreads>(s.rows, rows + feature, p.row_stride, chunk.rows, key_dim - feature, rows_aligned);
    if constexpr (!kSame) {
      LoadTile<kC, kScoreThreads>(s.columns, columns + feature, p.column_stride, chunk.rows, key_dim - feature,
                                  columns_aligned);
    }
    SyncThreads();
#pragma unroll 2
    for (int f = 0; f < kTileFeatures; f += 4) {
      Vec4 x[kTile];
      Vec4 y[kTile];
#pragma unroll
      for (int i = 0; i < kTile; ++i) {
        x[i] = s.rows.Load4((thread_row + kSide * i) * kTileStride + f);
        const int column = (thread_column + kSide * i) * kTileStride + f;
        if constexpr (kSame) {
          y[i] = s.rows.Load4(column);
        } else {
          y[i] = s.columns.Load4(column);
        }
      }
#pragma unroll
      for (int r = 0; r < kTile; ++r) {
#pragma unroll
        for (int c = 0; c < kTile; ++c) {
          sum[r][c] = fmaf(x[r].x, y[c].x, sum[r][c]);
          sum[r][c] = fmaf(x[r].y, y[c].y, sum[r][c]);
          sum[r][c] = fmaf(x[r].z, y[c].z, sum[r][c]);
          sum[r][c] = fmaf(x[r].w, y[c].w, sum[r][c]);
        }
      }
    }
    SyncThreads();
  }

  float* out = p.out + (chunk.index * heads + head) * kC * kC;
#pragma unroll
  for (int r = 0; r < kTile; ++r) {
    const int i = thread_row + kSide * r;
    const double g_i = s.g_sum[i];
    float weight = 1.0f;
    if constexpr (kScore != Score::kAttention) weight = i < chunk.rows ? p.beta[gate + int64_t{i} * heads] : 0.0f;
#pragma unroll
    for (int c = 0; c < kTile; ++c) {
      const int j = thread_column + kSide * c;
      const double g_j = s.g_sum[j];
      const bool inside = i < chunk.rows && (kScore == Score::kAttention ? j <= i : j < i);
      const float decay = inside && decays ? DecayFactor(g_i - g_j) : 1.0f;
      out[i * kC + j] = inside ? weight * sum[r][c] * decay : 0.0f;
    }
  }
}

template <int kC>
__global__ __launch_bounds__(kMaskThreads) void ChunkDecayMaskKernel(ChunkDecayMaskParams p) {
  const int heads = p.batch.dims.value_heads;
  const Chunk chunk = FindChunk(p.batch, blockIdx.x / heads);
  const double* g = p.g_sum + chunk.first * heads + blockIdx.x % heads;
  float* mask = p.mask + int64_t{blockIdx.x} * kC * kC;
  for (int at = static_cast<int>(threadIdx.x); at < kC * kC; at += kMaskThreads) {
    const int i = at / kC;
    const int j = at % kC;
    mask[at] = i < chunk.rows && j <= i ? DecayFactor(g[int64_t{i} * heads] - g[int64_t{j} * heads]) : 0.0f;
  }
}

template <Score kScore>
absl::Status LaunchScores(const char* name, const ScoreParams& params, const Stream& stream) {
  return LaunchStage(
      name, params, params.batch.chunks, 1, stream, [](auto c) { return ScoreKernel<c(), kScore>; }, kScoreThreads);
}

}  // namespace
}  // namespace gpu

absl::Status ChunkDecaySumsGpu(const ChunkDecaySumsParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateStage(params));
  return gpu::LaunchStage(
      "chunk_decay_sums", params, params.batch.chunks, 1, stream, [](auto c) { return gpu::ChunkDecaySumsKernel<c()>; },
      64);
}

absl::Status ChunkKktGpu(const ChunkKktParams& p, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateStage(p));
  return gpu::LaunchScores<gpu::Score::kKkt>(
      "chunk_kkt", {p.batch, p.k, p.k, p.k_stride, p.k_stride, nullptr, p.beta, p.g_sum, nullptr, p.a}, stream);
}

absl::Status CumsumKktGpu(const CumsumKktParams& p, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateStage(p));
  return gpu::LaunchScores<gpu::Score::kCumsumKkt>(
      "cumsum_kkt", {p.batch, p.k, p.k, p.k_stride, p.k_stride, p.g, p.beta, nullptr, p.g_sum, p.a}, stream);
}

absl::Status ChunkDecayMaskGpu(const ChunkDecayMaskParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateStage(params));
  return gpu::LaunchStage(
      "chunk_decay_mask", params, params.batch.chunks, 1, stream, [](auto c) { return gpu::ChunkDecayMaskKernel<c()>; },
      gpu::kMaskThreads);
}

absl::Status ChunkAttentionGpu(const ChunkAttentionParams& p, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateStage(p));
  return gpu::LaunchScores<gpu::Score::kAttention>(
      "chunk_attention", {p.batch, p.q, p.k, p.q_stride, p.k_stride, nullptr, nullptr, p.g_sum, nullptr, p.attention},
      stream);
}

}  // namespace gdn
