// The stages that apply a chunk's matrices: WY recompute, state passing, output.
//
//   w = T diag(beta e^G) K, u = T diag(beta) V
//   v_new = u - w S, S <- e^{G_C} S + (e^{G_C-G} K)^T v_new
//   o_i = e^{G_i} h_c^T q_i + sum_{j<=i} P_ij v_new_j
//
// Threads: a block has 4 C of them. WY and output: a (chunk, value head, 32 columns); a thread has 4 columns of rows i
// and i + C/2. States: a (sequence, value head, 16 columns of V), chunk after chunk; a thread has 4 columns of row i
// for v_new, then 4 columns of a row of S. S lives in `h`, so any K fits. Resources: LDS up to 27 KB. Every sum runs
// over rising indices.

#include "base/status_macros.h"
#include "kernels/gpu/launch.h"
#include "kernels/primitives/delta_rule_stages/chunk_stage.h"
#include "kernels/primitives/triangular_solve/triangular_solve.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kStateColumns = 16;
constexpr int kStateStride = kStateColumns + 4;

template <int kC>
struct WyShared {
  static constexpr int kStride = kC + 4;
  LdsArray<float, kC * kStride> t;
  LdsArray<float, kC * kTileStride> x;
};

template <int kC>
struct StateShared {
  LdsArray<float, kC * kTileStride> wk;             // w, then e^{G_C-G} k, 32 features of the chunk
  LdsArray<float, kTileFeatures * kStateStride> s;  // the same features of S
  LdsArray<float, kC * kStateStride> v_new;
};

template <int kC>
struct OutputShared {
  LdsArray<float, kC * kTileStride> left;              // q, then P
  LdsArray<float, kTileFeatures * kTileStride> right;  // h, then v_new
};

template <int kC>
__global__ __launch_bounds__(4 * kC) void WyKernel(WyParams p) {
  constexpr int kThreads = 4 * kC;
  constexpr int kStride = WyShared<kC>::kStride;
  WyShared<kC>& s = SharedMemory<WyShared<kC>>();
  const LayerDims& dims = p.batch.dims;
  const int heads = dims.value_heads;
  const int head = static_cast<int>(blockIdx.x % heads);
  const Chunk chunk = FindChunk(p.batch, blockIdx.x / heads);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t gate = chunk.first * heads + head;
  // The grid's second axis runs over the slices of w, then over those of u.
  const int key_slices = (dims.key_dim + kTileFeatures - 1) / kTileFeatures;
  const bool makes_w = static_cast<int>(blockIdx.y) < key_slices;
  const int feature = (static_cast<int>(blockIdx.y) - (makes_w ? 0 : key_slices)) * kTileFeatures;
  const int dim = makes_w ? dims.key_dim : dims.value_dim;
  const int64_t stride = makes_w ? p.k_stride : p.v_stride;
  const float* x = makes_w ? p.k + chunk.first * stride + int64_t{head / (heads / dims.key_heads)} * dim
                           : p.v + chunk.first * stride + int64_t{head} * dim;

  const float* t = p.t + int64_t{blockIdx.x} * kC * kC;
  for (int at = thread * 4; at < kC * kC; at += kThreads * 4) {
    s.t.Store4(at / kC * kStride + at % kC, LoadSome(t + at, 4, RowsAligned(t, 0)));
  }
  LoadScaledTile<kC, kThreads>(s.x, x + feature, stride, chunk.rows, dim - feature, RowsAligned(x, stride),
                               [&](int row) {
                                 const float beta = p.beta[gate + int64_t{row} * heads];
                                 return makes_w ? beta * DecayFactor(p.g_sum[gate + int64_t{row} * heads]) : beta;
                               });
  SyncThreads();

  const int column = thread % (kTileFeatures / 4) * 4;
  const int row = thread / (kTileFeatures / 4);
  Vec4 low{0.0f, 0.0f, 0.0f, 0.0f};
  Vec4 high{0.0f, 0.0f, 0.0f, 0.0f};
  MultiplyTiles<kC, kC, kStride>(s.t, s.x, row, column, low, high);
  float* out = makes_w ? p.w : p.u;
  const bool aligned = RowsAligned(out, dim);
  const int count = dim - feature - column;
  const int64_t token_stride = int64_t{heads} * dim;
  float* place = out + (chunk.first + row) * token_stride + int64_t{head} * dim + feature + column;
  if (row < chunk.rows) StoreSome(place, count, aligned, low);
  if (row + kC / 2 < chunk.rows) StoreSome(place + kC / 2 * token_stride, count, aligned, high);
}

template <int kC>
__global__ __launch_bounds__(4 * kC) void ChunkStateKernel(ChunkStateParams p) {
  constexpr int kThreads = 4 * kC;
  constexpr int kVectors = kStateColumns / 4;
  StateShared<kC>& s = SharedMemory<StateShared<kC>>();
  const LayerDims& dims = p.batch.dims;
  const int heads = dims.value_heads;
  const int key_dim = dims.key_dim;
  const int value_dim = dims.value_dim;
  const int64_t elements = int64_t{key_dim} * value_dim;
  const int64_t sequence = blockIdx.x / heads;
  const int head = static_cast<int>(blockIdx.x % heads);
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / kVectors;
  const int column = thread % kVectors * 4;  // of the slice
  const int first_column = static_cast<int>(blockIdx.y) * kStateColumns;
  const int count = value_dim - first_column - column;
  const int64_t begin = p.batch.cu_seqlens[sequence];
  const int64_t end = p.batch.cu_seqlens[sequence + 1];
  const int64_t first_chunk = p.batch.chunk_offsets[sequence];
  float* final_state = p.final_state + int64_t{blockIdx.x} * elements + first_column + column;
  float* state = begin == end ? final_state : p.h + (first_chunk * heads + head) * elements + first_column + column;
  const float* initial =
      p.initial_state == nullptr ? nullptr : p.initial_state + int64_t{blockIdx.x} * elements + first_column + column;
  // One answer for all tensors: scalar registers are short here.
  const bool aligned = RowsAligned(p.h, value_dim) && RowsAligned(p.final_state, value_dim) &&
                       RowsAligned(p.initial_state, value_dim) && RowsAligned(p.u, value_dim) &&
                       RowsAligned(p.v_new, value_dim) && RowsAligned(p.w, key_dim) && RowsAligned(p.k, p.k_stride);
  for (int f = row; f < key_dim; f += kThreads / kVectors) {
    const Vec4 zero{0.0f, 0.0f, 0.0f, 0.0f};
    const Vec4 v = initial == nullptr ? zero : LoadSome(initial + int64_t{f} * value_dim, count, aligned);
    StoreSome(state + int64_t{f} * value_dim, count, aligned, v);
  }
  SyncThreads();

  const int64_t w_stride = int64_t{heads} * key_dim;
  const int64_t v_stride = int64_t{heads} * value_dim;
  for (int64_t first = begin; first < end; first += kC) {
    const int rows = static_cast<int>(end - first < kC ? end - first : kC);
    const double* g = p.g_sum + first * heads + head;
    const double last = g[int64_t{rows - 1} * heads];
    const float* w = p.w + first * w_stride + int64_t{head} * key_dim;
    const float* k = p.k + first * p.k_stride + int64_t{head / (heads / dims.key_heads)} * key_dim;
    const int64_t value_at = (first + row) * v_stride + int64_t{head} * value_dim + first_column + column;

    Vec4 value{0.0f, 0.0f, 0.0f, 0.0f};
    if (row < rows) value = LoadSome(p.u + value_at, count, aligned);
    for (int feature = 0; feature < key_dim; feature += kTileFeatures) {
      LoadTile<kC, kThreads>(s.wk, w + feature, w_stride, rows, key_dim - feature, aligned);
      for (int f = row; f < kTileFeatures; f += kThreads / kVectors) {
        // What this thread itself wrote at the end of the chunk before.
        const int64_t at = int64_t{feature + f} * value_dim;
        Vec4 v{0.0f, 0.0f, 0.0f, 0.0f};
        if (feature + f < key_dim) v = LoadSome(state + at, count, aligned);
        s.s.Store4(f * kStateStride + column, v);
      }
      SyncThreads();
#pragma unroll 2
      for (int f = 0; f < kTileFeatures; f += 4) {
        const Vec4 x = s.wk.Load4(row * kTileStride + f);
        MultiplyAdd(-x.x, s.s.Load4(f * kStateStride + column), value);
        MultiplyAdd(-x.y, s.s.Load4((f + 1) * kStateStride + column), value);
        MultiplyAdd(-x.z, s.s.Load4((f + 2) * kStateStride + column), value);
        MultiplyAdd(-x.w, s.s.Load4((f + 3) * kStateStride + column), value);
      }
      SyncThreads();
    }
    if (row < rows) StoreSome(p.v_new + value_at, count, aligned, value);
    s.v_new.Store4(row * kStateStride + column, value);

    float* next = first + kC < end ? state + heads * elements : final_state;
    const float kept = DecayFactor(last);
    for (int feature = 0; feature < key_dim; feature += kTileFeatures) {
      LoadScaledTile<kC, kThreads>(s.wk, k + feature, p.k_stride, rows, key_dim - feature, aligned,
                                   [&](int i) { return DecayFactor(last - g[int64_t{i} * heads]); });
      SyncThreads();
      for (int f = row; f < kTileFeatures; f += kThreads / kVectors) {
        if (feature + f >= key_dim) continue;
        const int64_t at = int64_t{feature + f} * value_dim;
        Vec4 sum = Scale(LoadSome(state + at, count, aligned), kept);
#pragma unroll 4
        for (int i = 0; i < rows; ++i) {
          const float x = s.wk[i * kTileStride + f];
          MultiplyAdd(x, s.v_new.Load4(i * kStateStride + column), sum);
        }
        StoreSome(next + at, count, aligned, sum);
      }
      SyncThreads();
    }
    state = next;
  }
}

template <int kC>
__global__ __launch_bounds__(4 * kC) void ChunkOutputKernel(ChunkOutputParams p) {
  constexpr int kThreads = 4 * kC;
  OutputShared<kC>& s = SharedMemory<OutputShared<kC>>();
  const LayerDims& dims = p.batch.dims;
  const int heads = dims.value_heads;
  const int key_dim = dims.key_dim;
  const int value_dim = dims.value_dim;
  const int head = static_cast<int>(blockIdx.x % heads);
  const Chunk chunk = FindChunk(p.batch, blockIdx.x / heads);
  const int thread = static_cast<int>(threadIdx.x);
  const int first_column = static_cast<int>(blockIdx.y) * kTileFeatures;
  const int column = thread % (kTileFeatures / 4) * 4;
  const int row = thread / (kTileFeatures / 4);
  const int columns = value_dim - first_column;
  const float* q = p.q + chunk.first * p.q_stride + int64_t{head / (heads / dims.key_heads)} * key_dim;
  const float* h = p.h + int64_t{blockIdx.x} * key_dim * value_dim + first_column;
  const float* attention = p.attention + int64_t{blockIdx.x} * kC * kC;
  const int64_t v_stride = int64_t{heads} * value_dim;
  const float* v_new = p.v_new + chunk.first * v_stride + int64_t{head} * value_dim + first_column;
  const bool q_aligned = RowsAligned(q, p.q_stride);
  const bool h_aligned = RowsAligned(h, value_dim);
  const bool v_aligned = RowsAligned(v_new, value_dim);

  Vec4 low{0.0f, 0.0f, 0.0f, 0.0f};
  Vec4 high{0.0f, 0.0f, 0.0f, 0.0f};
  const auto multiply = [&] { MultiplyTiles<kC, kTileFeatures, kTileStride>(s.left, s.right, row, column, low, high); };
  for (int feature = 0; feature < key_dim; feature += kTileFeatures) {
    LoadTile<kC, kThreads>(s.left, q + feature, p.q_stride, chunk.rows, key_dim - feature, q_aligned);
    LoadTile<kTileFeatures, kThreads>(s.right, h + int64_t{feature} * value_dim, value_dim, key_dim - feature, columns,
                                      h_aligned);
    SyncThreads();
    multiply();
    SyncThreads();
  }
  const double* g = p.g_sum + chunk.first * heads + head;
  const bool has_high = row + kC / 2 < chunk.rows;
  if (row < chunk.rows) low = Scale(low, DecayFactor(g[int64_t{row} * heads]));
  if (has_high) high = Scale(high, DecayFactor(g[int64_t{row + kC / 2} * heads]));
  for (int token = 0; token < chunk.rows; token += kTileFeatures) {
    LoadTile<kC, kThreads>(s.left, attention + token, kC, chunk.rows, chunk.rows - token, RowsAligned(attention, kC));
    LoadTile<kTileFeatures, kThreads>(s.right, v_new + token * v_stride, v_stride, chunk.rows - token, columns,
                                      v_aligned);
    SyncThreads();
    multiply();
    SyncThreads();
  }
  float* out = p.output + (chunk.first + row) * v_stride + int64_t{head} * value_dim + first_column + column;
  const bool out_aligned = RowsAligned(p.output, value_dim);
  if (row < chunk.rows) StoreSome(out, columns - column, out_aligned, low);
  if (has_high) StoreSome(out + kC / 2 * v_stride, columns - column, out_aligned, high);
}

}  // namespace
}  // namespace gpu

absl::Status WyGpu(const WyParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateStage(params));
  const LayerDims& dims = params.batch.dims;
  const int64_t slices =
      gpu::CeilDivide(dims.key_dim, gpu::kTileFeatures) + gpu::CeilDivide(dims.value_dim, gpu::kTileFeatures);
  return gpu::LaunchStage("wy", params, params.batch.chunks, slices, stream, [](auto c) { return gpu::WyKernel<c()>; });
}

absl::Status ChunkStateGpu(const ChunkStateParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateStage(params));
  const int64_t slices = gpu::CeilDivide(params.batch.dims.value_dim, gpu::kStateColumns);
  return gpu::LaunchStage("chunk_state", params, params.batch.sequences, slices, stream,
                          [](auto c) { return gpu::ChunkStateKernel<c()>; });
}

absl::Status ChunkOutputGpu(const ChunkOutputParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateStage(params));
  const int64_t slices = gpu::CeilDivide(params.batch.dims.value_dim, gpu::kTileFeatures);
  return gpu::LaunchStage("chunk_output", params, params.batch.chunks, slices, stream,
                          [](auto c) { return gpu::ChunkOutputKernel<c()>; });
}

absl::Status DeltaRuleStagesGpu(const DeltaRuleStagesParams& p, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(CumsumKktGpu({p.batch, p.k, p.k_stride, p.g, p.beta, p.g_sum, p.t}, stream));
  GDN_RETURN_IF_ERROR(ChunkAttentionGpu({p.batch, p.q, p.k, p.q_stride, p.k_stride, p.g_sum, p.attention}, stream));
  GDN_RETURN_IF_ERROR(UnitLowerInverseGpu({.batch = int64_t{p.batch.chunks} * p.batch.dims.value_heads,
                                           .size = p.batch.chunk_tokens,
                                           .a = p.t,
                                           .inverse = p.t},
                                          stream));
  GDN_RETURN_IF_ERROR(WyGpu({p.batch, p.t, p.k, p.v, p.k_stride, p.v_stride, p.beta, p.g_sum, p.w, p.v_new}, stream));
  GDN_RETURN_IF_ERROR(ChunkStateGpu(
      {p.batch, p.k, p.k_stride, p.w, p.v_new, p.g_sum, p.initial_state, p.h, p.v_new, p.final_state}, stream));
  return ChunkOutputGpu({p.batch, p.q, p.q_stride, p.h, p.attention, p.v_new, p.g_sum, p.output}, stream);
}

}  // namespace gdn
