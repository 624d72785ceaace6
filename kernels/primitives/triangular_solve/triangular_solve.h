// Solves many unit lower triangular systems of a chunk's size, A strictly lower: (I + A)^-1, or X in (I - A) X = B.
//
//   (I + A)^-1      16x16 diagonal blocks T_bb by substitution, then merged up, 16 to 32 to 64, by products:
//                     T_21 = -T_22 A_21 T_11
//   (I - A) X = B   16 rows at a time: X_b = B_b + sum_{c<b} A_bc X_c, then substitution within the block
// The diagonal and the elements above it are never read, so they may hold anything. A written inverse has exactly 1 on
// the diagonal and exactly 0 above it. A matrix's bits do not depend on the rest of the batch.
// Thread safety: any number of calls at a time on different outputs. Ownership: none; pointers are backend memory (host
// memory for the references).
//
//   GDN_RETURN_IF_ERROR(UnitLowerInverseGpu({.batch = chunks * heads, .size = 64, .a = a, .inverse = a}, stream));
//   GDN_RETURN_IF_ERROR(CausalSolveGpu({.batch = 3, .size = 64, .columns = 128, .a = a, .b = b, .x = x}, stream));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/stream.h"

namespace gdn {

// Most rows of a matrix, as many as the largest chunk has tokens.
inline constexpr int32_t kMaxTriangularSize = 64;

struct UnitLowerInverseParams {
  int64_t batch = 0;
  int32_t size = 0;          // n, 1 .. 64; computed as the least of 16, 32 and 64 that is not smaller
  const float* a = nullptr;  // [batch, n, n], strictly lower part
  float* inverse = nullptr;  // [batch, n, n]; may be `a`: in place
};

struct CausalSolveParams {
  int64_t batch = 0;
  int32_t size = 0;          // n, 1 .. 64
  int32_t columns = 0;       // of B and X, at least 1
  const float* a = nullptr;  // [batch, n, n], strictly lower part
  const float* b = nullptr;  // [batch, n, columns]
  float* x = nullptr;        // [batch, n, columns]; may be `b`: in place
};

absl::Status ValidateUnitLowerInverse(const UnitLowerInverseParams& params);
absl::Status ValidateCausalSolve(const CausalSolveParams& params);

// References on host memory for valid params: row by row substitution in double.
void UnitLowerInverseReference(const UnitLowerInverseParams& params);
void CausalSolveReference(const CausalSolveParams& params);

absl::Status UnitLowerInverseGpu(const UnitLowerInverseParams& params, const gpu::Stream& stream);
absl::Status CausalSolveGpu(const CausalSolveParams& params, const gpu::Stream& stream);

}  // namespace gdn
