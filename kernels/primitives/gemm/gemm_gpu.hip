// C = alpha op(A) op(B) + beta C on the GPU, naive and tiled, with the same bits.
//
// Naive: a thread an element, tiles of 16 x 64 (matrix_tiles.h). Tiled: a block of 256 threads makes 64 x 64 of C, a
// thread 4 x 4 of them, from slices of 16 along k that lie in LDS k-major, rows of 68 floats, so that every operand
// read is 16 bytes. The next slice is loaded while the present one is used. Loads are 16 bytes where the stored rows
// are aligned to them and the four elements are there. Resources: 8.7 KB LDS. Bound by arithmetic for k above some
// tens.

#include "base/status_macros.h"
#include "kernels/gpu/launch.h"
#include "kernels/gpu/matrix_tiles.h"
#include "kernels/gpu/vec4_math.h"
#include "kernels/primitives/gemm/gemm.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64;
constexpr int kDepth = 16;
constexpr int kPitch = kTile + 4;

struct Shared {
  LdsArray<float, kDepth * kPitch> a;  // [k][m]
  LdsArray<float, kDepth * kPitch> b;  // [k][n]
};

__device__ __forceinline__ float Combine(const GemmParams& p, float sum, const float* c) {
  const float scaled = p.alpha * sum;
  return p.beta == 0.0f ? scaled : fmaf(p.beta, *c, scaled);
}

__global__ __launch_bounds__(kMatrixTileThreads) void GemmNaiveKernel(GemmParams p) {
  const int64_t a_row =
      p.layout == GemmLayout::kTN ? 1 : p.a_stride;  // floats from one i to the next, one l to the next
  const int64_t a_depth = p.layout == GemmLayout::kTN ? p.a_stride : 1;
  const int64_t b_col = p.layout == GemmLayout::kNT ? p.b_stride : 1;
  const int64_t b_depth = p.layout == GemmLayout::kNT ? 1 : p.b_stride;
  ForEachElement(p.m, p.n, [&](int64_t batch, int64_t row, int64_t col) {
    const float* a = p.a + batch * p.a_batch_stride + row * a_row;
    const float* b = p.b + batch * p.b_batch_stride + col * b_col;
    float sum = 0.0f;
    for (int64_t l = 0; l < p.k; ++l) sum = fmaf(a[l * a_depth], b[l * b_depth], sum);
    float* c = p.c + batch * p.c_batch_stride + row * p.c_stride + col;
    *c = Combine(p, sum, c);
  });
}

// Four neighbours of a stored row, zeros where there are none.
__device__ __forceinline__ Vec4 LoadFour(const float* matrix, int64_t stride, int64_t row, int64_t rows, int64_t col,
                                         int64_t cols, bool vector) {
  if (row >= rows) return {0.0f, 0.0f, 0.0f, 0.0f};
  return LoadSome(matrix + row * stride + col, cols - col, vector);
}

// One operand's slice of kDepth along k and kTile across: from memory to registers, from there to LDS.
template <bool kDepthContiguous>
struct Slice {
  // The thread's four elements. Contiguous along k: tile row thread / 4, k 4 (thread % 4) .. + 3; else k thread / 16,
  // columns 4 (thread % 16) .. + 3.
  static __device__ __forceinline__ Vec4 Load(const float* matrix, int64_t stride, int64_t first, int64_t size,
                                              int64_t depth, int64_t k, bool vector) {
    const int thread = threadIdx.x;
    if constexpr (kDepthContiguous) {
      return LoadFour(matrix, stride, first + thread / 4, size, depth + 4 * (thread % 4), k, vector);
    }
    return LoadFour(matrix, stride, depth + thread / 16, k, first + 4 * (thread % 16), size, vector);
  }
  static __device__ __forceinline__ void Store(LdsArray<float, kDepth * kPitch>& lds, const Vec4& v) {
    const int thread = threadIdx.x;
    if constexpr (kDepthContiguous) {
      const int at = 4 * (thread % 4) * kPitch + thread / 4;
      lds[at] = v.x;
      lds[at + kPitch] = v.y;
      lds[at + 2 * kPitch] = v.z;
      lds[at + 3 * kPitch] = v.w;
    } else {
      lds.Store4(thread / 16 * kPitch + 4 * (thread % 16), v);
    }
  }
};

template <GemmLayout kLayout>
__global__ __launch_bounds__(kThreads) void GemmKernel(GemmParams p, bool a_vector, bool b_vector) {
  using SliceA = Slice<kLayout != GemmLayout::kTN>;
  using SliceB = Slice<kLayout == GemmLayout::kNT>;
  Shared& s = SharedMemory<Shared>();
  const int64_t tiles_down = (p.m + kTile - 1) / kTile;
  const int64_t tiles_across = (p.n + kTile - 1) / kTile;
  const int64_t batch = blockIdx.x / (tiles_down * tiles_across);
  const int64_t in_matrix = blockIdx.x % (tiles_down * tiles_across);
  const int64_t first_row = in_matrix / tiles_across * kTile;
  const int64_t first_col = in_matrix % tiles_across * kTile;
  const float* a = p.a + batch * p.a_batch_stride;
  const float* b = p.b + batch * p.b_batch_stride;
  const int row4 = 4 * (static_cast<int>(threadIdx.x) / 16);
  const int col4 = 4 * (static_cast<int>(threadIdx.x) % 16);

  float sum[4][4] = {};
  Vec4 next_a = SliceA::Load(a, p.a_stride, first_row, p.m, 0, p.k, a_vector);
  Vec4 next_b = SliceB::Load(b, p.b_stride, first_col, p.n, 0, p.k, b_vector);
  for (int64_t depth = 0; depth < p.k; depth += kDepth) {
    SliceA::Store(s.a, next_a);
    SliceB::Store(s.b, next_b);
    SyncThreads();
    if (depth + kDepth < p.k) {
      next_a = SliceA::Load(a, p.a_stride, first_row, p.m, depth + kDepth, p.k, a_vector);
      next_b = SliceB::Load(b, p.b_stride, first_col, p.n, depth + kDepth, p.k, b_vector);
    }
#pragma unroll
    for (int l = 0; l < kDepth; ++l) {
      const Vec4 x = s.a.Load4(l * kPitch + row4);
      const Vec4 y = s.b.Load4(l * kPitch + col4);
      MultiplyAdd(x.x, y, sum[0]);
      MultiplyAdd(x.y, y, sum[1]);
      MultiplyAdd(x.z, y, sum[2]);
      MultiplyAdd(x.w, y, sum[3]);
    }
    SyncThreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t row = first_row + row4 + i;
    if (row >= p.m) continue;
    float* c = p.c + batch * p.c_batch_stride + row * p.c_stride + first_col + col4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (first_col + col4 + j < p.n) c[j] = Combine(p, sum[i][j], c + j);
    }
  }
}

// Whether every stored row of every matrix of the batch begins at a multiple of 16 bytes.
bool Aligned(const float* data, int64_t stride, int64_t batch_stride) {
  return Aligned16(data) && stride % 4 == 0 && batch_stride % 4 == 0;
}

}  // namespace
}  // namespace gpu

absl::Status GemmNaiveGpu(const GemmParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateGemm(params));
  return gpu::Launch("gemm_naive", gpu::GemmNaiveKernel, {gpu::MatrixTiles(params.batch, params.m, params.n)},
                     gpu::kMatrixTileThreads, stream, params);
}

absl::Status GemmGpu(const GemmParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateGemm(params));
  const int64_t blocks = params.batch * gpu::CeilDivide(params.m, gpu::kTile) * gpu::CeilDivide(params.n, gpu::kTile);
  const bool a_vector = gpu::Aligned(params.a, params.a_stride, params.a_batch_stride);
  const bool b_vector = gpu::Aligned(params.b, params.b_stride, params.b_batch_stride);
  const bool nn = params.layout == GemmLayout::kNN, nt = params.layout == GemmLayout::kNT;
  return gpu::Launch(nn   ? "gemm_nn"
                     : nt ? "gemm_nt"
                          : "gemm_tn",
                     nn   ? gpu::GemmKernel<GemmLayout::kNN>
                     : nt ? gpu::GemmKernel<GemmLayout::kNT>
                          : gpu::GemmKernel<GemmLayout::kTN>,
                     {blocks}, gpu::kThreads, stream, params, a_vector, b_vector);
}

}  // namespace gdn
