// Transposes batches of row-major matrices.
//
//   y[b][j][i] = x[b][i][j]
// y must not overlap x.
// Thread safety: any number of calls at a time on different outputs. Ownership: none; pointers are backend memory (host
// memory for the reference).
//
//   GDN_RETURN_IF_ERROR(TransposeGpu({.batch = 1, .rows = 100, .cols = 7, .x = x, .y = y}, stream));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/stream.h"

namespace gdn {

struct TransposeParams {
  int64_t batch = 1;
  int64_t rows = 0;
  int64_t cols = 0;
  const float* x = nullptr;  // [batch, rows, cols]
  float* y = nullptr;        // [batch, cols, rows]
};

absl::Status ValidateTranspose(const TransposeParams& params);
void TransposeReference(const TransposeParams& params);
absl::Status TransposeGpu(const TransposeParams& params, const gpu::Stream& stream);

}  // namespace gdn
