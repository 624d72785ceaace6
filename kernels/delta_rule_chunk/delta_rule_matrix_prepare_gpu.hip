// Computes what the tokens of each chunk contribute to each other by matrix units (delta_rule_matrix_gpu.hip), for all
// chunks at once. A, T, P and the treatment of a NaN in g are those of delta_rule_chunk_prepare_gpu.hip, for chunks of
// 64 tokens.
//
// Threads: 256 a (chunk, key head), or a part of its value heads, which share K K^T and Q K^T. A wave computes a row of
// blocks of 16 x 16 of one of the two, up to the diagonal, and keeps it in registers while value head after value head
// multiplies its decays in. T's blocks on the diagonal are found by substitution, a lane a column; those below them by
// products in float32: T_ij = -T_ii sum_m A_im T_mj.
// Resources: 81 KB of LDS, two blocks a processor.

#include "kernels/common/log_decay_gpu-inl.h"
#include "kernels/delta_rule_chunk/chunk_inverse_gpu-inl.h"
#include "kernels/delta_rule_chunk/delta_rule_matrix_gpu-inl.h"

namespace gdn::gpu::matrix {
namespace {

constexpr int kThreads = 256;
constexpr int kSlab = 64;  // dims that are multiplied while others are on their way
constexpr int kMostSlabs = kSplitMostKeys / kSlab;
constexpr int kMostHeads = 4;  // value heads of a block
static_assert(kThreads == kBlockFloats && kThreads >= kMostHeads * kC);

struct PrepareShared {
  LdsArray<float, kC * kStride> k[kMostSlabs];  // slabs of K; the first is A afterwards
  LdsArray<float, kC * kStride> q[kMostSlabs];  // slabs of Q; the first is T afterwards
  LdsArray<float, (kBlocks - 1) * kBlockFloats> product;
  LdsArray<double, kMostHeads * kC> sum;  // G
  LdsArray<float, kMostHeads * kC> g;
  LdsArray<float, kMostHeads * kC> beta;  // zero past the chunk's tokens
};

__device__ __forceinline__ bool IsNaN(double x) { return x != x; }

// Computes T = (I + A)^-1 in sh.q[0] from A in sh.k[0], both up to the diagonal's blocks. All threads call, after a
// barrier.
__device__ __forceinline__ void Invert(PrepareShared& sh) {
  const int thread = static_cast<int>(threadIdx.x);
  const int ti = thread / kBlock;
  const int tj = thread % kBlock;
  if (thread < kC) SolveColumn<kStride>(sh.k[0], sh.q[0], thread / kBlock, thread % kBlock);
  SyncThreads();
#pragma unroll
  for (int below = 1; below < kBlocks; ++below) {
#pragma unroll
    for (int j = 0; j + below < kBlocks; ++j) {
      float sum = 0.0f;
#pragma unroll
      for (int m = j * kBlock; m < (j + below) * kBlock; m += 4) {
        float a[4];
        Unpack4(sh.k[0].Load4(((j + below) * kBlock + ti) * kStride + m), a);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float t = sh.q[0][(m + c) * kStride + j * kBlock + tj];
          sum = fmaf(a[c], t, sum);
        }
      }
      sh.product[j * kBlockFloats + thread] = sum;
    }
    SyncThreads();
#pragma unroll
    for (int j = 0; j + below < kBlocks; ++j) {
      const int row = (j + below) * kBlock + ti;
      float sum = 0.0f;
#pragma unroll
      for (int m = 0; m < kBlock; m += 4) {
        float t[4];
        Unpack4(sh.q[0].Load4(row * kStride + (j + below) * kBlock + m), t);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float x = sh.product[j * kBlockFloats + (m + c) * kBlock + tj];
          sum = fmaf(-t[c], x, sum);
        }
      }
      sh.q[0][row * kStride + j * kBlock + tj] = sum;
    }
    SyncThreads();
  }
}

template <bool kAligned>
// NOLINTNEXTLINE(readability-function-size): its phases share registers.
__global__ __launch_bounds__(kThreads) void DeltaRuleMatrixPrepareKernel(ChunkArgs args, int heads) {
  PrepareShared& sh = LaunchedSharedMemory<PrepareShared>();
  const DeltaRuleArgs& p = args.rule;
  const uint32_t parts = static_cast<uint32_t>(p.value_heads / heads);
  const int first_head = static_cast<int>(blockIdx.x % parts) * heads;
  const int chunk = static_cast<int>(blockIdx.x / parts % static_cast<uint32_t>(args.chunks));
  const int sequence = static_cast<int>(blockIdx.x / parts / static_cast<uint32_t>(args.chunks));
  const int64_t first = p.cu_seqlens[sequence];
  const int64_t start = first + int64_t{chunk} * kC;
  const int rows = static_cast<int>(min(int64_t{kC}, p.cu_seqlens[sequence + 1] - start));
  if (rows <= 0 || p.slots[sequence] < 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const Place my = ThisPlace();
  const bool queries = my.wave >= kBlocks;
  const int block_row = queries ? 2 * kBlocks - 1 - my.wave : my.wave;  // so that each scheduler has as many blocks
  const int my_head = thread / kC;
  const int my_token = thread % kC;
  float g = 0.0f;
  float beta = 0.0f;
  if (my_head < heads && my_token < rows) {
    const int64_t at = (start + my_token) * p.value_heads + first_head + my_head;
    g = p.g[at];
    beta = p.beta[at];
  }
  sh.g[thread] = g;
  sh.beta[thread] = beta;

  const int64_t key_offset = int64_t{first_head / p.group} * p.key_dim;
  const int slabs = (p.key_dim + kSlab - 1) / kSlab;
  for (int slab = 0; slab < slabs; ++slab) {
    const int64_t at = key_offset + slab * kSlab;
    const int dims = p.key_dim - slab * kSlab;
    CopyRows<kSlab, kThreads, kAligned>(sh.k[slab], p.k + start * p.k_stride + at, p.k_stride, rows, dims);
    CopyRows<kSlab, kThreads, kAligned>(sh.q[slab], p.q + start * p.q_stride + at, p.q_stride, rows, dims);
    CommitCopies();
  }
  SyncThreads();
  if (my_head < heads) {
    // Every lane sums its own prefix: the serial order's bits in the time of one.
    double sum = 0.0;
#pragma unroll 16
    for (int j = 0; j < kC; ++j) {
      const float of_j = sh.g[my_head * kC + j];
      sum += j <= my_token ? static_cast<double>(ClampLogDecay(of_j)) : 0.0;
    }
    sh.sum[thread] = sum;
  }
  float products[kBlocks][1][2][4] = {};  // of block column c: its two tiles of 8 columns
#pragma unroll 1
  for (int slab = 0; slab < slabs; ++slab) {
    if (slab + 1 < slabs) {
      WaitForCopies<1>();
    } else {
      WaitForCopies<0>();
    }
    SyncThreads();
    auto& key_rows = sh.k[slab];
    auto& left_rows = queries ? sh.q[slab] : key_rows;
#pragma unroll
    for (int c = 0; c < kBlocks; ++c) {
      if (c > block_row) continue;
      MultiplyTerms<kSlab / 8>(
          [&](int step, int, float(&a)[4]) {
            const int at = (block_row * kBlock + my.g) * kStride + step * 8 + my.q * 2;
            const Vec2 upper = left_rows.Load2(at);
            const Vec2 lower = left_rows.Load2(at + 8 * kStride);
            a[0] = upper.x;
            a[1] = upper.y;
            a[2] = lower.x;
            a[3] = lower.y;
          },
          [&](int step, int n) { return key_rows.Load2((c * kBlock + n * 8 + my.g) * kStride + step * 8 + my.q * 2); },
          products[c]);
    }
  }

#pragma unroll 1
  for (int h = 0; h < heads; ++h) {
    SyncThreads();  // nobody reads the slabs any more, or the A and T of the head before
    float* out = args.workspace + WorkspaceAt(first, sequence, chunk, p.value_heads, first_head + h);
#pragma unroll
    for (int c = 0; c < kBlocks; ++c) {
      if (c > block_row) continue;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int in_row = my.g + e / 2 % 2 * 8;
        const int in_column = e / 4 * 8 + my.q * 2 + e % 2;
        const int i = block_row * kBlock + in_row;
        const int j = c * kBlock + in_column;
        const double gi = sh.sum[h * kC + i];
        const double gj = sh.sum[h * kC + j];
        const float decay = j <= i ? expf(static_cast<float>(gi - gj)) : 0.0f;
        const float product = products[c][0][e / 4][e % 4];
        if (queries) {
          out[Workspace::kP + BlockAt(block_row, c) * kBlockFloats + in_row * kBlock + in_column] =
              j <= i ? product * decay : 0.0f;
        } else {
          const float of_row = sh.beta[h * kC + i];
          sh.k[0][i * kStride + j] = j < i && !IsNaN(gi) ? of_row * product * decay : 0.0f;
        }
      }
    }
    if (thread < kC) {
      const double sum = sh.sum[h * kC + thread];
      const double last = sh.sum[h * kC + kC - 1];
      out[Workspace::kGrown + thread] = IsNaN(sum) ? 0.0f : expf(static_cast<float>(sum));
      out[Workspace::kTail + thread] = expf(static_cast<float>(last - sum));
    }
    SyncThreads();
    Invert(sh);
#pragma unroll
    for (int r = 0; r < kBlocks; ++r) {
#pragma unroll
      for (int c = 0; c <= r; ++c) {
        const int column = c * kBlock + thread % kBlock;
        const float t = sh.q[0][(r * kBlock + thread / kBlock) * kStride + column];
        const float of_column = sh.beta[h * kC + column];
        out[Workspace::kT + BlockAt(r, c) * kBlockFloats + thread] = t * of_column;
      }
    }
  }
}

}  // namespace

absl::Status LaunchPrepare(const ChunkArgs& args, const DeviceBatch& batch, bool aligned, const Stream& stream) {
  const DeltaRuleArgs& p = args.rule;
  const int64_t blocks = int64_t{batch.sequences} * args.chunks;
  // Fewer heads a block if there are not blocks enough for all processors.
  int heads = std::min(p.group, kMostHeads);
  while (heads > 1 && (p.group % heads != 0 || blocks * (p.value_heads / heads) < stream.processors)) --heads;
  return Launch(
      "delta_rule_matrix_prepare", aligned ? DeltaRuleMatrixPrepareKernel<true> : DeltaRuleMatrixPrepareKernel<false>,
      {.x = blocks * (p.value_heads / heads), .lds_bytes = sizeof(PrepareShared)}, kThreads, stream, args, heads);
}

}  // namespace gdn::gpu::matrix
