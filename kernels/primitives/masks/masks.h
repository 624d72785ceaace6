// Triangular masks and identities, on batches of row-major matrices.
//
//   tril      y[i][j] = j <= i + diagonal ? x[i][j] : 0; -1 leaves the tokens before each token (a strict causal mask)
//   identity  y = I + sign x
// If x is null, tril masks ones, which gives the mask itself, and identity gives I. Masked elements are never used in
// arithmetic, so they may be NaN. y may be x.
// Thread safety: any number of calls at a time on different outputs. Ownership: none; pointers are backend memory (host
// memory for the references).
//
//   GDN_RETURN_IF_ERROR(TrilGpu({.batch = heads, .rows = c, .cols = c, .diagonal = 0, .x = a, .y = a}, stream));
//   GDN_RETURN_IF_ERROR(IdentityGpu({.batch = heads, .rows = c, .cols = c, .sign = -1.0f, .x = a, .y = a}, stream));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/stream.h"

namespace gdn {

struct TrilParams {
  int64_t batch = 1;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t diagonal = 0;      // last diagonal that is kept; -1 masks the main one too
  const float* x = nullptr;  // [batch, rows, cols], or null for ones
  float* y = nullptr;        // [batch, rows, cols]
};

struct IdentityParams {
  int64_t batch = 1;
  int64_t rows = 0;
  int64_t cols = 0;
  float sign = 1.0f;         // 1: I + x, -1: I - x
  const float* x = nullptr;  // [batch, rows, cols], or null: I alone
  float* y = nullptr;        // [batch, rows, cols]
};

absl::Status ValidateTril(const TrilParams& params);
absl::Status ValidateIdentity(const IdentityParams& params);
void TrilReference(const TrilParams& params);
void IdentityReference(const IdentityParams& params);
absl::Status TrilGpu(const TrilParams& params, const gpu::Stream& stream);
absl::Status IdentityGpu(const IdentityParams& params, const gpu::Stream& stream);

}  // namespace gdn
