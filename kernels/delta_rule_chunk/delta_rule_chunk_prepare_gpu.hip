// Computes what the tokens of each chunk contribute to each other, for all chunks at once. With G = cumsum g inside the
// chunk (double):
//   A_ij = beta_i (k_i.k_j) e^{G_i-G_j}, j < i      T = (I + A)^-1      P_ij = (q_i.k_j) e^{G_i-G_j}, j <= i
//
// A NaN in g makes the head's outputs NaN from its token on, and the state after the chunk. It must not reach earlier
// tokens, and the walk multiplies by T's and P's zeros above the diagonal. So only P's rows and `tail` are NaN there;
// A's rows and `grown` are 0, which keeps X and U finite.
// Threads: 256 a (chunk, value head), thread (i, j) of 16 x 16 computes entries {i, i + 16} x {j, j + 16} of K K^T and
// Q K^T. T = [T1 0; -T2 A21 T1, T2]: the two diagonal blocks by substitution, a lane a column, then two products of 16
// x 16.
// Resources: 18 KB of LDS, 64 dims of K and Q at a time, whose place A and T take; three blocks a processor. A sixth of
// the chunked path's work, and all of it parallel.

#include "kernels/common/log_decay_gpu-inl.h"
#include "kernels/delta_rule_chunk/chunk_inverse_gpu-inl.h"
#include "kernels/delta_rule_chunk/chunk_workspace_gpu-inl.h"

namespace gdn::gpu {
namespace {

constexpr int kC = kGpuChunkTokens;
constexpr int kHalf = kChunkHalf;
constexpr int kSlab = 64;               // dims in LDS at a time
constexpr int kSlabStride = kSlab + 4;  // padded, so that a column of rows spreads over the banks
constexpr int kStride = kChunkStride;

struct Shared {
  LdsArray<float, 2 * kC * kSlabStride> floats;  // K and Q; then A, T and the product A21 T1
  LdsArray<double, kC> sum;                      // G
  LdsArray<float, kC> g;
  LdsArray<float, kC> beta;  // zero past the chunk's tokens
};
constexpr int kQueries = kC * kSlabStride;  // where Q begins
static_assert(2 * kC * kStride + kHalf * kHalf <= 2 * kC * kSlabStride);

// The part of Shared::floats from `at` on.
struct Part {
  Shared& sh;
  int at;

  __device__ __forceinline__ decltype(auto) operator[](int i) { return sh.floats[at + i]; }
  __device__ __forceinline__ Vec4 Load4(int i) { return sh.floats.Load4(at + i); }
};

__device__ __forceinline__ bool IsNaN(double x) { return x != x; }

__device__ __forceinline__ float Dot4(const Vec4& a, const Vec4& b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// Dims [dim, dim + kSlab) of the chunk's rows; zero past K and past the last row.
template <bool kExact>
__device__ __forceinline__ void LoadSlab(const float* from, int64_t stride, int rows, int dim, int key_dim, Shared& sh,
                                         int to) {
#pragma unroll
  for (int n = 0; n < kC * kSlab / 4 / kDeltaRuleThreads; ++n) {
    const int i = n * kDeltaRuleThreads + static_cast<int>(threadIdx.x);
    const int row = i / (kSlab / 4);
    const int at = i % (kSlab / 4) * 4;
    Vec4 x{0.0f, 0.0f, 0.0f, 0.0f};
    const float* source = from + row * stride + dim + at;
    if (row < rows) {
      if constexpr (kExact) {
        x = Load4(source);
      } else {
        if (dim + at < key_dim) x.x = source[0];
        if (dim + at + 1 < key_dim) x.y = source[1];
        if (dim + at + 2 < key_dim) x.z = source[2];
        if (dim + at + 3 < key_dim) x.w = source[3];
      }
    }
    sh.floats.Store4(to + row * kSlabStride + at, x);
  }
}

template <bool kExact>
// NOLINTNEXTLINE(readability-function-size): its phases share registers.
__global__ __launch_bounds__(kDeltaRuleThreads, 3) void DeltaRulePrepareKernel(ChunkArgs args) {
  Shared& sh = SharedMemory<Shared>();
  const DeltaRuleArgs& p = args.rule;
  const int64_t block = blockIdx.x;
  const int head = static_cast<int>(block % p.value_heads);
  const int chunk = static_cast<int>(block / p.value_heads % args.chunks);
  const int sequence = static_cast<int>(block / p.value_heads / args.chunks);
  const int64_t first = p.cu_seqlens[sequence];
  const int64_t start = first + int64_t{chunk} * kC;
  const int rows = static_cast<int>(min(int64_t{kC}, p.cu_seqlens[sequence + 1] - start));
  if (rows <= 0 || p.slots[sequence] < 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int ti = thread / kHalf;
  const int tj = thread % kHalf;
  float* out = args.workspace + ChunkBlock(first, sequence, chunk, p.value_heads, head) * ChunkWorkspace::kFloats;

  if (thread < kC) {
    sh.g[thread] = thread < rows ? p.g[(start + thread) * p.value_heads + head] : 0.0f;
    sh.beta[thread] = thread < rows ? p.beta[(start + thread) * p.value_heads + head] : 0.0f;
  }
  const int64_t key_offset = int64_t{head / p.group} * p.key_dim;
  float kk[2][2] = {};
  float qk[2][2] = {};
  for (int dim = 0; dim < p.key_dim; dim += kSlab) {
    if (dim > 0) SyncThreads();
    LoadSlab<kExact>(p.k + start * p.k_stride + key_offset, p.k_stride, rows, dim, p.key_dim, sh, 0);
    LoadSlab<kExact>(p.q + start * p.q_stride + key_offset, p.q_stride, rows, dim, p.key_dim, sh, kQueries);
    SyncThreads();
    if (dim == 0 && thread < kC) {
      // Every lane sums its own prefix: the serial order's bits in the time of one.
      double sum = 0.0;
      for (int j = 0; j < kC; ++j) {
        const float g = sh.g[j];
        sum += j <= thread ? static_cast<double>(ClampLogDecay(g)) : 0.0;
      }
      sh.sum[thread] = sum;
    }
#pragma unroll 4
    for (int d = 0; d < kSlab; d += 4) {
      const auto row = [&](int i, int at) { return sh.floats.Load4(at + i * kSlabStride + d); };
      const Vec4 ki[2] = {row(ti, 0), row(ti + kHalf, 0)};
      const Vec4 qi[2] = {row(ti, kQueries), row(ti + kHalf, kQueries)};
      const Vec4 kj[2] = {row(tj, 0), row(tj + kHalf, 0)};
#pragma unroll
      for (int a = 0; a < 2; ++a) {
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          kk[a][b] = Dot4(ki[a], kj[b], kk[a][b]);
          qk[a][b] = Dot4(qi[a], kj[b], qk[a][b]);
        }
      }
    }
  }
  SyncThreads();

  Part matrix{sh, 0}, inverse{sh, kC * kStride}, product{sh, 2 * kC * kStride};
#pragma unroll
  for (int a = 0; a < 2; ++a) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int i = ti + a * kHalf;
      const int j = tj + b * kHalf;
      const double gi = sh.sum[i];
      const double gj = sh.sum[j];
      const float decay = j <= i ? expf(static_cast<float>(gi - gj)) : 0.0f;
      const float beta = sh.beta[i];
      matrix[i * kStride + j] = j < i && !IsNaN(gi) ? beta * kk[a][b] * decay : 0.0f;
      out[ChunkWorkspace::kP + i * kC + j] = j <= i ? qk[a][b] * decay : 0.0f;
    }
  }
  if (thread < kC) {
    const double sum = sh.sum[thread];
    const double last = sh.sum[kC - 1];
    out[ChunkWorkspace::kGrown + thread] = IsNaN(sum) ? 0.0f : expf(static_cast<float>(sum));
    out[ChunkWorkspace::kTail + thread] = expf(static_cast<float>(last - sum));
  }
  SyncThreads();
  WriteInverse(matrix, inverse, product, sh.beta, out + ChunkWorkspace::kT);
}

}  // namespace

absl::Status PrepareChunks(const ChunkArgs& args, const DeviceBatch& batch, const Stream& stream) {
  const DeltaRuleArgs& p = args.rule;
  const bool exact =
      p.key_dim % kSlab == 0 && Aligned16(p.q) && Aligned16(p.k) && p.q_stride % 4 == 0 && p.k_stride % 4 == 0;
  const Grid grid{int64_t{batch.sequences} * args.chunks * p.value_heads};
  return Launch("delta_rule_prepare", exact ? DeltaRulePrepareKernel<true> : DeltaRulePrepareKernel<false>, grid,
                kDeltaRuleThreads, stream, args);
}

}  // namespace gdn::gpu
