// Running sums along tokens, separately for each feature, over all tokens or restarted in every chunk.
//
//   y[t][d] = sum of x[s][d] over s <= t,  with `chunk` > 0 over those s <= t of t's chunk of that many tokens
// features = 1 is the scalar form, with threads along tokens; otherwise threads are along features too. Summed in
// double and rounded at the end, so y[t] does not depend on how many tokens follow. y may be x.
// Thread safety: any number of calls at a time on different outputs and workspaces. Ownership: none; pointers are
// backend memory (host memory for the reference, which needs no workspace).
//
//   GDN_RETURN_IF_ERROR(CumsumGpu({.tokens = t, .features = heads, .chunk = 64, .x = g, .y = sums}, stream));
//   // Without chunks, or with long ones: .workspace = memory of CumsumWorkspaceBytes(params), where that is not 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/stream.h"

namespace gdn {

struct CumsumParams {
  int64_t tokens = 0;
  int64_t features = 1;
  int64_t chunk = 0;            // tokens of a chunk; 0: one sum over all
  const float* x = nullptr;     // [tokens, features]
  float* y = nullptr;           // [tokens, features]
  double* workspace = nullptr;  // CumsumWorkspaceBytes bytes, 8-byte aligned; may be null if that is 0
};

inline constexpr int64_t kMaxCumsumTokens = int64_t{1} << 30;

size_t CumsumWorkspaceBytes(const CumsumParams& params);

absl::Status ValidateCumsum(const CumsumParams& params);
void CumsumReference(const CumsumParams& params);
absl::Status CumsumGpu(const CumsumParams& params, const gpu::Stream& stream);

// Tokens that a block of the GPU kernel sums: with one feature, and with several.
inline constexpr int64_t kCumsumScalarTile = 2048;
inline constexpr int64_t kCumsumVectorTile = 64;

}  // namespace gdn
