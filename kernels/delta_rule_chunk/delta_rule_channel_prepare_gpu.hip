// Computes what the tokens of each chunk contribute to each other if each key channel has a decay, for all chunks of a
// span at once. With G [K] = cumsum g inside the chunk (double):
//   A_ij = beta_i sum_c k_i k_j e^{G_i-G_j}, j < i      T = (I + A)^-1      P_ij = sum_c q_i k_j e^{G_i-G_j}, j <= i
// and the keys and queries that the walk multiplies S by, decayed.
//
// The products do not factor into a matrix times a mask. Inside the two diagonal blocks of 16 x 16 each pair of tokens
// has its differences and exponentials, a channel at a time. Between the blocks, with G_b the first half's last sum,
// they are those of e^{G_i-G_b} k_i and e^{G_b-G_j} k_j: as j <= b <= i, no exponent is positive, and a gate without a
// bound (g = -1e4) gives zeros, not infinities times zeros.
// A NaN in g is kept from earlier tokens as in delta_rule_chunk_prepare_gpu.hip: A's rows and k_grown are 0 from its
// token on, P's rows, q_grown, k_tail and `decay` are NaN.
// Threads: 256 a (chunk, value head). By channels, 32 a time: a thread has four tokens of one, and a sum over the
// groups of tokens before its own. By pairs: thread (ti, tj) of 16 x 16 has a pair of the first diagonal block below
// the diagonal, of the second above it, and one between the blocks.
// Resources: 27 KB of LDS. Bound by VALU: 240 exponentials a channel.

#include "kernels/common/log_decay_gpu-inl.h"
#include "kernels/delta_rule_chunk/chunk_inverse_gpu-inl.h"
#include "kernels/delta_rule_chunk/chunk_workspace_gpu-inl.h"

namespace gdn::gpu {
namespace {

constexpr int kC = kGpuChunkTokens;
constexpr int kHalf = kChunkHalf;
constexpr int kSlab = 32;  // channels in LDS at a time
constexpr int kStride = kChunkStride;
constexpr int kSumStride = kSlab + 1;                  // so that a column of rows spreads over the banks
constexpr int kRows = kC * kSlab / kDeltaRuleThreads;  // of a thread
constexpr int kRowGroups = kC / kRows;
static_assert(kSlab + 4 == kStride && kRowGroups % 2 == 0);

struct Shared {
  LdsArray<float, kC * kStride> k;             // then A
  LdsArray<float, kC * kStride> q;             // then T
  LdsArray<float, kC * kStride> near_k;        // e^{G_b-G_j} k_j of the first half, e^{G_i-G_b} k_i of the second
  LdsArray<float, kHalf * kStride> near_q;     // e^{G_i-G_b} q_i of the second; then A21 T1
  LdsArray<double, kC * kSumStride> sum;       // G
  LdsArray<double, kRowGroups * kSlab> total;  // of a group's rows
  LdsArray<float, kC> beta;                    // zero past the chunk's tokens
};

__device__ __forceinline__ float Dot4(const Vec4& a, const Vec4& b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// A thread's tokens of one channel; zero past K and past the chunk's.
struct Column {
  int channel, in_slab, group;
  float k[kRows];
  float q[kRows];
  double sum[kRows];  // of g, from the group's first row
};

__device__ __forceinline__ Column LoadColumn(const DeltaRuleArgs& p, int64_t start, int rows, int head, int slab,
                                             Shared& sh) {
  const int thread = static_cast<int>(threadIdx.x);
  Column my;
  my.in_slab = thread % kSlab;
  my.group = thread / kSlab;
  my.channel = slab + my.in_slab;
  const int64_t key = int64_t{head / p.group} * p.key_dim + my.channel;
  double sum = 0.0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = my.group * kRows + r;
    const bool inside = row < rows && my.channel < p.key_dim;
    const int64_t token = start + row;
    my.k[r] = inside ? p.k[token * p.k_stride + key] : 0.0f;
    my.q[r] = inside ? p.q[token * p.q_stride + key] : 0.0f;
    const float g = inside ? p.g[(token * p.value_heads + head) * p.key_dim + my.channel] : 0.0f;
    sum += static_cast<double>(ClampLogDecay(g));
    my.sum[r] = sum;
    sh.k[row * kStride + my.in_slab] = my.k[r];
    sh.q[row * kStride + my.in_slab] = my.q[r];
  }
  sh.total[my.group * kSlab + my.in_slab] = sum;
  return my;
}

// Sums, the halves' near keys and queries, and what the walk takes. The sums do not grow from row to row: a group's are
// rounded as the one before it ends.
__device__ __forceinline__ void DecayColumn(const Column& my, int key_slots, Shared& sh, float* out) {
  double before = 0.0;
  double middle = 0.0;
  double all = 0.0;
#pragma unroll
  for (int group = 0; group < kRowGroups; ++group) {
    const double total = sh.total[group * kSlab + my.in_slab];
    all += total;
    if (group == my.group - 1) before = all;
    if (group == kRowGroups / 2 - 1) middle = all;
  }
  const bool upper = my.group < kRowGroups / 2;
  const float far = expf(static_cast<float>(upper ? all - middle : middle));
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = my.group * kRows + r;
    const double sum = before + my.sum[r];
    const float near = expf(static_cast<float>(upper ? middle - sum : sum - middle));
    const float own = expf(static_cast<float>(upper ? sum : all - sum));
    const float grown = upper ? own : near * far;
    const float tail = upper ? near * far : own;
    sh.sum[row * kSumStride + my.in_slab] = sum;
    sh.near_k[row * kStride + my.in_slab] = near * my.k[r];
    if (!upper) sh.near_q[(row - kHalf) * kStride + my.in_slab] = near * my.q[r];
    const int at = row * key_slots + my.channel;
    out[ChannelWorkspace::KGrown(key_slots) + at] = grown != grown ? 0.0f : grown * my.k[r];
    out[ChannelWorkspace::KTail(key_slots) + at] = tail * my.k[r];
    out[ChannelWorkspace::QGrown(key_slots) + at] = grown * my.q[r];
  }
  if (my.group == 0) out[ChannelWorkspace::kDecay + my.channel] = expf(static_cast<float>(all));
}

// A thread's pairs (i, j): one of a diagonal block, and (ti + 16, tj).
struct Pairs {
  int ti, tj, i, j;
  float kk, qk;            // (i, j)
  float near_kk, near_qk;  // (ti + 16, tj)
  float last_qk;           // (ti + 16, ti + 16), where ti = tj
  // NaN if a decay of row i, or of row ti + 16, is; else 0.
  float lost, near_lost;
};

__device__ __forceinline__ void AddSlab(Shared& sh, Pairs& my) {
#pragma unroll 1
  for (int d = 0; d < kSlab; d += 4) {
    float k[4];
    Unpack4(sh.k.Load4(my.j * kStride + d), k);
    const Vec4 ki = sh.k.Load4(my.i * kStride + d);
    const Vec4 qi = sh.q.Load4(my.i * kStride + d);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const double newer = sh.sum[my.i * kSumStride + d + c];
      const double older = sh.sum[my.j * kSumStride + d + c];
      const float decay = expf(static_cast<float>(newer - older));
      k[c] *= decay;
      my.lost = fmaf(decay, 0.0f, my.lost);
    }
    const Vec4 kj{k[0], k[1], k[2], k[3]};
    my.kk = Dot4(ki, kj, my.kk);
    my.qk = Dot4(qi, kj, my.qk);
    const Vec4 near_j = sh.near_k.Load4(my.tj * kStride + d);
    const Vec4 near_i = sh.near_k.Load4((kHalf + my.ti) * kStride + d);
    my.near_lost = Dot4(near_i, {0.0f, 0.0f, 0.0f, 0.0f}, my.near_lost);
    my.near_kk = Dot4(near_i, near_j, my.near_kk);
    my.near_qk = Dot4(sh.near_q.Load4(my.ti * kStride + d), near_j, my.near_qk);
    if (my.ti == my.tj) {
      const int last = (kHalf + my.ti) * kStride + d;
      my.last_qk = Dot4(sh.q.Load4(last), sh.k.Load4(last), my.last_qk);
    }
  }
}

__global__ __launch_bounds__(kDeltaRuleThreads, 2) void DeltaRuleChannelPrepareKernel(ChunkArgs args, Span span,
                                                                                      int key_slots) {
  Shared& sh = SharedMemory<Shared>();
  const DeltaRuleArgs& p = args.rule;
  const int64_t block = blockIdx.x;
  const int head = static_cast<int>(block % p.value_heads);
  const int chunk = static_cast<int>(block / p.value_heads % span.chunks);
  const int sequence = span.sequence + static_cast<int>(block / p.value_heads / span.chunks);
  const int64_t start = p.cu_seqlens[sequence] + int64_t{span.chunk + chunk} * kC;
  const int rows = static_cast<int>(min(int64_t{kC}, p.cu_seqlens[sequence + 1] - start));
  if (rows <= 0 || p.slots[sequence] < 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  float* out = args.workspace + block * ChannelWorkspace::Floats(key_slots);
  if (thread < kC) sh.beta[thread] = thread < rows ? p.beta[(start + thread) * p.value_heads + head] : 0.0f;

  Pairs my{};
  my.ti = thread / kHalf;
  my.tj = thread % kHalf;
  const bool first_block = my.ti >= my.tj;
  my.i = first_block ? my.ti : kHalf + my.tj;
  my.j = first_block ? my.tj : kHalf + my.ti;
#pragma unroll 1
  for (int slab = 0; slab < key_slots; slab += kSlab) {
    if (slab > 0) SyncThreads();
    const Column column = LoadColumn(p, start, rows, head, slab, sh);
    SyncThreads();
    DecayColumn(column, key_slots, sh, out);
    SyncThreads();
    AddSlab(sh, my);
  }
  SyncThreads();

  const int ti = my.ti;
  const int tj = my.tj;
  const float beta = sh.beta[my.i];
  const float near_beta = sh.beta[kHalf + ti];
  const float a = my.lost != my.lost ? 0.0f : beta * my.kk;
  sh.k[ti * kStride + tj] = ti > tj ? a : 0.0f;
  sh.k[(kHalf + tj) * kStride + kHalf + ti] = ti < tj ? a : 0.0f;
  sh.k[(kHalf + ti) * kStride + tj] = my.near_lost != my.near_lost ? 0.0f : near_beta * my.near_kk;
  float* products = out + ChannelWorkspace::kP;
  products[ti * kC + tj] = first_block ? my.qk : 0.0f;
  products[(kHalf + tj) * kC + kHalf + ti] = ti == tj ? my.last_qk : first_block ? 0.0f : my.qk;
  products[(kHalf + ti) * kC + tj] = my.near_qk;
  products[ti * kC + kHalf + tj] = 0.0f;
  SyncThreads();
  WriteInverse(sh.k, sh.q, sh.near_q, sh.beta, out + ChannelWorkspace::kT);
}

}  // namespace

absl::Status PrepareChannelChunks(const ChunkArgs& args, const Span& span, int32_t key_slots, const Stream& stream) {
  const Grid grid{int64_t{span.sequences} * span.chunks * args.rule.value_heads};
  return Launch("delta_rule_prepare", DeltaRuleChannelPrepareKernel, grid, kDeltaRuleThreads, stream, args, span,
                key_slots);
}

}  // namespace gdn::gpu
