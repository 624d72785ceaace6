// Unit lower triangular inverses and causal solves on the GPU.
//
//   (I + A)^-1      T_bb by substitution; T_21 = -T_22 (A_21 T_11), block sizes 16 -> 32 -> 64
//   (I - A) X = B   X_b = B_b + sum_{c<b} A_bc X_c, then substitution within the block of 16 rows
//
// Inverse: a block of 4 n threads has 64 / n matrices of n x n in LDS, 64 rows in all. Substitution: 64 lanes, one a
// column of a diagonal block, the column in registers. Products: a thread makes 4 neighbouring columns of a row. A_21
// T_11 is kept in the unused block above the diagonal, T_21 then takes A_21's place.
// Solve: a block of 128 threads has one matrix and 32 columns of B; a thread has 4 columns of a row of 16, then 32
// lanes a column each.
// Resources: LDS 17 KB (inverse), 26 KB (solve). Every sum runs over rising indices, so bits do not depend on the wave
// width.

#include <type_traits>

#include "base/status_macros.h"
#include "kernels/gpu/launch.h"
#include "kernels/gpu/vec4_math.h"
#include "kernels/primitives/triangular_solve/triangular_solve.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kBlockRows = 16;   // of a diagonal block
constexpr int kMatrixRows = 64;  // rows of all matrices of a block
constexpr int kSolveThreads = 128;
constexpr int kSolveColumns = 32;
constexpr int kSolveStride = kSolveColumns + 4;

// LDS rows are padded by one Vec4, against bank conflicts.
template <int kSize>
struct InverseShared {
  static constexpr int kStride = kSize + 4;
  LdsArray<float, kMatrixRows * kStride> m;
};

struct SolveShared {
  static constexpr int kStride = kMatrixRows + 4;
  LdsArray<float, kMatrixRows * kStride> a;
  LdsArray<float, kMatrixRows * kSolveStride> x;
};

// Column `column` of the inverse of the diagonal block at LDS row `row`, column `first`. The unit diagonal comes from
// the right-hand side, so it cannot get lost.
template <int kStride, typename Array>
__device__ __forceinline__ void InvertDiagonalColumn(Array& m, int row, int first, int column, float (&x)[kBlockRows]) {
#pragma unroll
  for (int i = 0; i < kBlockRows; ++i) {
    float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < i; ++j) {
      const float a = m[(row + i) * kStride + first + j];
      sum = fmaf(-a, x[j], sum);
    }
    x[i] = sum;
  }
}

// Merges inverted diagonal blocks of kHalf x kHalf to blocks of twice the size.
template <int kSize, int kHalf, int kThreads, typename Array>
__device__ __forceinline__ void MergeBlocks(Array& m) {
  constexpr int kStride = InverseShared<kSize>::kStride;
  constexpr int kVectors = kHalf / 4;
  constexpr int kItems = kMatrixRows / (2 * kHalf) * kHalf * kVectors;
  const auto place = [](int item, int& top, int& left, int& i, int& j) {
    const int pair = item / (kHalf * kVectors);
    top = pair * 2 * kHalf;
    left = top % kSize;
    i = item / kVectors % kHalf;
    j = item % kVectors * 4;
  };
  for (int item = static_cast<int>(threadIdx.x); item < kItems; item += kThreads) {
    int top, left, i, j;
    place(item, top, left, i, j);
    Vec4 sum{0.0f, 0.0f, 0.0f, 0.0f};
    for (int k = 0; k < kHalf; ++k) {
      // T_11 is zero above its diagonal, where LDS holds something else.
      const Vec4 t = m.Load4((top + k) * kStride + left + j);
      const float a = m[(top + kHalf + i) * kStride + left + k];
      MultiplyAdd(a, {k >= j ? t.x : 0.0f, k > j ? t.y : 0.0f, k > j + 1 ? t.z : 0.0f, k > j + 2 ? t.w : 0.0f}, sum);
    }
    m.Store4((top + i) * kStride + left + kHalf + j, sum);
  }
  SyncThreads();
  for (int item = static_cast<int>(threadIdx.x); item < kItems; item += kThreads) {
    int top, left, i, j;
    place(item, top, left, i, j);
    Vec4 sum{0.0f, 0.0f, 0.0f, 0.0f};
    for (int k = 0; k <= i; ++k) {
      const float t = m[(top + kHalf + i) * kStride + left + kHalf + k];
      MultiplyAdd(-t, m.Load4((top + k) * kStride + left + kHalf + j), sum);
    }
    m.Store4((top + kHalf + i) * kStride + left + j, sum);
  }
  SyncThreads();
}

template <int kSize>
__global__ __launch_bounds__(4 * kSize) void UnitLowerInverseKernel(UnitLowerInverseParams p) {
  constexpr int kThreads = 4 * kSize;
  constexpr int kStride = InverseShared<kSize>::kStride;
  constexpr int kMatrices = kMatrixRows / kSize;
  InverseShared<kSize>& s = SharedMemory<InverseShared<kSize>>();
  const int thread = static_cast<int>(threadIdx.x);
  const int n = p.size;
  const int64_t first_matrix = int64_t{blockIdx.x} * kMatrices;

  // Rows and columns past n, and matrices past the batch, are those of the identity.
  for (int i = thread; i < kMatrixRows * kSize; i += kThreads) {
    const int row = i / kSize;
    const int column = i % kSize;
    const int64_t matrix = first_matrix + row / kSize;
    const int r = row % kSize;
    const bool stored = matrix < p.batch && r < n && column < r;
    s.m[row * kStride + column] = stored ? p.a[(matrix * n + r) * n + column] : 0.0f;
  }
  SyncThreads();

  float x[kBlockRows];
  const int row = thread / kBlockRows * kBlockRows;
  const int first = row % kSize;
  const int column = thread % kBlockRows;
  if (thread < kMatrixRows) InvertDiagonalColumn<kStride>(s.m, row, first, column, x);
  SyncThreads();
  if (thread < kMatrixRows) {
#pragma unroll
    for (int i = 0; i < kBlockRows; ++i) s.m[(row + i) * kStride + first + column] = x[i];
  }
  SyncThreads();
  if constexpr (kSize >= 32) MergeBlocks<kSize, 16, kThreads>(s.m);
  if constexpr (kSize >= 64) MergeBlocks<kSize, 32, kThreads>(s.m);

  for (int i = thread; i < kMatrixRows * kSize; i += kThreads) {
    const int r = i / kSize % kSize;
    const int c = i % kSize;
    const int64_t matrix = first_matrix + i / (kSize * kSize);
    if (matrix >= p.batch || r >= n || c >= n) continue;
    const float value = s.m[i / kSize * kStride + c];
    p.inverse[(matrix * n + r) * n + c] = c > r ? 0.0f : value;
  }
}

__global__ __launch_bounds__(kSolveThreads) void CausalSolveKernel(CausalSolveParams p) {
  constexpr int kStride = SolveShared::kStride;
  SolveShared& s = SharedMemory<SolveShared>();
  const int thread = static_cast<int>(threadIdx.x);
  const int n = p.size;
  const int rows = (n + kBlockRows - 1) / kBlockRows * kBlockRows;
  const int64_t matrix = blockIdx.x;
  const int first_column = static_cast<int>(blockIdx.y) * kSolveColumns;

  for (int i = thread; i < rows * kMatrixRows; i += kSolveThreads) {
    const int r = i / kMatrixRows;
    const int c = i % kMatrixRows;
    s.a[r * kStride + c] = r < n && c < r ? p.a[(matrix * n + r) * n + c] : 0.0f;
  }
  for (int i = thread; i < rows * kSolveColumns; i += kSolveThreads) {
    const int r = i / kSolveColumns;
    const int c = first_column + i % kSolveColumns;
    s.x[r * kSolveStride + i % kSolveColumns] = r < n && c < p.columns ? p.b[(matrix * n + r) * p.columns + c] : 0.0f;
  }
  SyncThreads();

  for (int top = 0; top < rows; top += kBlockRows) {
    if (top > 0) {
      const int r = top + thread / (kSolveColumns / 4);
      const int at = r * kSolveStride + thread % (kSolveColumns / 4) * 4;
      Vec4 sum = s.x.Load4(at);
      for (int j = 0; j < top; ++j) {
        const float a = s.a[r * kStride + j];
        MultiplyAdd(a, s.x.Load4(j * kSolveStride + thread % (kSolveColumns / 4) * 4), sum);
      }
      s.x.Store4(at, sum);
      SyncThreads();
    }
    if (thread < kSolveColumns) {
      float x[kBlockRows];
#pragma unroll
      for (int i = 0; i < kBlockRows; ++i) {
        float sum = s.x[(top + i) * kSolveStride + thread];
#pragma unroll
        for (int j = 0; j < i; ++j) {
          const float a = s.a[(top + i) * kStride + top + j];
          sum = fmaf(a, x[j], sum);
        }
        x[i] = sum;
      }
#pragma unroll
      for (int i = 0; i < kBlockRows; ++i) s.x[(top + i) * kSolveStride + thread] = x[i];
    }
    SyncThreads();
  }

  for (int i = thread; i < n * kSolveColumns; i += kSolveThreads) {
    const int r = i / kSolveColumns;
    const int c = first_column + i % kSolveColumns;
    if (c >= p.columns) continue;
    p.x[(matrix * n + r) * p.columns + c] = s.x[r * kSolveStride + i % kSolveColumns];
  }
}

}  // namespace
}  // namespace gpu

absl::Status UnitLowerInverseGpu(const UnitLowerInverseParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateUnitLowerInverse(params));
  const auto launch = [&](auto size) {
    constexpr int kSize = decltype(size)::value;
    const int64_t blocks = gpu::CeilDivide(params.batch, gpu::kMatrixRows / kSize);
    return gpu::Launch("unit_lower_inverse", gpu::UnitLowerInverseKernel<kSize>, {blocks}, 4 * kSize, stream, params);
  };
  if (params.size <= 16) return launch(std::integral_constant<int, 16>());
  if (params.size <= 32) return launch(std::integral_constant<int, 32>());
  return launch(std::integral_constant<int, 64>());
}

absl::Status CausalSolveGpu(const CausalSolveParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateCausalSolve(params));
  const gpu::Grid grid{params.batch, gpu::CeilDivide(params.columns, gpu::kSolveColumns)};
  return gpu::Launch("causal_solve", gpu::CausalSolveKernel, grid, gpu::kSolveThreads, stream, params);
}

}  // namespace gdn
