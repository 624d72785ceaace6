// Triangular masks and identities, on batches of row-major matrices.
//
//   tril            y[i][j] = j <= i + diagonal ? x[i][j] : 0
//   causal mask     y[i][j] = j < i ? x[i][j] : 0, tril with diagonal -1: what a token may read of those before it
//   eye             y[i][j] = i == j
//   apply identity  y = I + sign x
// Without x, the masks are of ones: y is the mask itself. What is masked is never used in arithmetic, so it may be NaN.
// y may be x.
// Thread safety: any number of calls at a time on different outputs. Ownership: none; pointers are backend memory (host
// memory for the references).
//
//   GDN_RETURN_IF_ERROR(TrilGpu({.batch = heads, .rows = c, .cols = c, .diagonal = 0, .x = a, .y = a}, stream));
//   GDN_RETURN_IF_ERROR(ApplyIdentityGpu({.batch = heads, .size = c, .sign = -1.0f, .x = a, .y = a}, stream));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/stream.h"

namespace gdn {

struct TrilParams {
  int64_t batch = 1;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t diagonal = 0;      // first diagonal above which all is masked; -1 masks the main one too
  const float* x = nullptr;  // [batch, rows, cols], or null for ones
  float* y = nullptr;        // [batch, rows, cols]
};

struct CausalMaskParams {
  int64_t batch = 1;
  int64_t size = 0;          // tokens
  const float* x = nullptr;  // [batch, size, size], or null for ones
  float* y = nullptr;        // [batch, size, size]
};

struct EyeParams {
  int64_t batch = 1;
  int64_t rows = 0;
  int64_t cols = 0;
  float* y = nullptr;  // [batch, rows, cols]
};

struct ApplyIdentityParams {
  int64_t batch = 1;
  int64_t size = 0;
  float sign = 1.0f;         // 1: I + x, -1: I - x
  const float* x = nullptr;  // [batch, size, size]
  float* y = nullptr;        // [batch, size, size]
};

absl::Status ValidateTril(const TrilParams& params);
absl::Status ValidateCausalMask(const CausalMaskParams& params);
absl::Status ValidateEye(const EyeParams& params);
absl::Status ValidateApplyIdentity(const ApplyIdentityParams& params);

void TrilReference(const TrilParams& params);
void CausalMaskReference(const CausalMaskParams& params);
void EyeReference(const EyeParams& params);
void ApplyIdentityReference(const ApplyIdentityParams& params);

absl::Status TrilGpu(const TrilParams& params, const gpu::Stream& stream);
absl::Status CausalMaskGpu(const CausalMaskParams& params, const gpu::Stream& stream);
absl::Status EyeGpu(const EyeParams& params, const gpu::Stream& stream);
absl::Status ApplyIdentityGpu(const ApplyIdentityParams& params, const gpu::Stream& stream);

}  // namespace gdn
