// Scales rows to unit length, and its gradient. For any width, unlike qk_l2norm (the layer's fused form).
//
//   forward    r = 1 / sqrt(sum x^2 + eps);  y = x r
//   backward   dx = r dy - x r^3 sum(dy x)
// Sums are float32: a row whose squares overflow (norm above 1.8e19) becomes zero. A row's bits depend only on that
// row. y may be x, dx may be dy.
// Thread safety: any number of calls at a time on different outputs. Ownership: none; pointers are backend memory (host
// memory for the references).
//
//   GDN_RETURN_IF_ERROR(L2NormGpu({.rows = n, .width = 128, .x = x, .y = y}, stream));
//   GDN_RETURN_IF_ERROR(L2NormBackwardGpu({.rows = n, .width = 128, .x = x, .dy = dy, .dx = dx}, stream));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/stream.h"

namespace gdn {

struct L2NormParams {
  int64_t rows = 0;
  int64_t width = 0;
  float epsilon = 1e-6f;
  const float* x = nullptr;  // [rows, width]
  float* y = nullptr;        // [rows, width]
};

struct L2NormBackwardParams {
  int64_t rows = 0;
  int64_t width = 0;
  float epsilon = 1e-6f;
  const float* x = nullptr;   // [rows, width], the input of the forward
  const float* dy = nullptr;  // [rows, width]
  float* dx = nullptr;        // [rows, width]
};

absl::Status ValidateL2Norm(const L2NormParams& params);
absl::Status ValidateL2NormBackward(const L2NormBackwardParams& params);
void L2NormReference(const L2NormParams& params);
void L2NormBackwardReference(const L2NormBackwardParams& params);
absl::Status L2NormGpu(const L2NormParams& params, const gpu::Stream& stream);
absl::Status L2NormBackwardGpu(const L2NormBackwardParams& params, const gpu::Stream& stream);

}  // namespace gdn
