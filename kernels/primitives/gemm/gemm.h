// Batches of float32 matrix products, small or large, that no fused kernel covers.
//
//   C = alpha op(A) op(B) + beta C      C [m, n] row-major; every product of a batch has the same shape
//   kNN   op(A)[i][l] = a[i][l], op(B)[l][j] = b[l][j]
//   kNT   op(A)[i][l] = a[i][l], op(B)[l][j] = b[j][l]
//   kTN   op(A)[i][l] = a[l][i], op(B)[l][j] = b[l][j]
// An element is one chain of fused multiply-adds over l = 0 .. k - 1, in the naive and the tiled form: both give the
// same bits for any m, n, batch and strides. With beta = 0, C is not read and may hold anything; with k = 0 the sum is
// 0. C must not overlap A or B.
// Thread safety: any number of calls at a time on different outputs. Ownership: none; pointers are backend memory (host
// memory for the reference).
//
//   GDN_RETURN_IF_ERROR(GemmGpu({.layout = GemmLayout::kNT, .m = c, .n = c, .k = 128, .a = k, .a_stride = 128,
//                                .b = k, .b_stride = 128, .c = gram, .c_stride = c}, stream));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/stream.h"

namespace gdn {

enum class GemmLayout : uint8_t { kNN, kNT, kTN };

struct GemmParams {
  GemmLayout layout = GemmLayout::kNN;
  int64_t batch = 1;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  float alpha = 1.0f;
  float beta = 0.0f;
  // Strides: floats from row to row as stored. Batch strides: from matrix to matrix; 0: all share one (A, B only).
  const float* a = nullptr;  // kNN, kNT: [m, k]; kTN: [k, m]
  int64_t a_stride = 0;
  int64_t a_batch_stride = 0;
  const float* b = nullptr;  // kNN, kTN: [k, n]; kNT: [n, k]
  int64_t b_stride = 0;
  int64_t b_batch_stride = 0;
  float* c = nullptr;  // [m, n]
  int64_t c_stride = 0;
  int64_t c_batch_stride = 0;
};

absl::Status ValidateGemm(const GemmParams& params);
void GemmReference(const GemmParams& params);

// Launches the form with one thread per element of C: for products too small to tile, and for comparison. Params must
// be valid. Same bits as GemmGpu.
absl::Status GemmNaiveGpu(const GemmParams& params, const gpu::Stream& stream);
// Launches the form with tiles of 64 x 64 elements in LDS. Params must be valid. Same bits as GemmNaiveGpu.
absl::Status GemmGpu(const GemmParams& params, const gpu::Stream& stream);

}  // namespace gdn
