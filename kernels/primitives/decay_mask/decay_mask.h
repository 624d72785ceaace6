// What the decay does between tokens of a chunk, given their log decays g <= 0. With G the chunk's running sum of g,
// each clamped (kernels/common/log_decay.h),
//
//   mask[i][j]   = e^{G_i - G_j} for j <= i, else 0     how much of what token j wrote is left when token i reads
//   from_start[i] = e^{G_i}                             how much of the state before the chunk is left at token i
//   to_end[i]     = e^{G_last - G_i}                    how much of what token i wrote is left after the chunk
// The later minus the earlier: with the sign the other way about, strong decay would be growth. G and the differences
// are in double, rounded before exp, and never e^{G_i} e^{-G_j}, which is 0 times infinity where the decay is strong.
// Thread safety: any number of calls at a time on different outputs. Ownership: none; pointers are backend memory (host
// memory for the reference).
//
//   GDN_RETURN_IF_ERROR(DecayMaskGpu({.batch = heads, .size = c, .g = g, .mask = mask, .from_start = e}, stream));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/stream.h"

namespace gdn {

inline constexpr int32_t kMaxDecayMaskSize = 256;

// Outputs that are null are not made.
struct DecayMaskParams {
  int64_t batch = 1;
  int32_t size = 0;          // tokens, up to kMaxDecayMaskSize
  const float* g = nullptr;  // [batch, size], g_stride floats from token to token, g_batch_stride from chunk to chunk
  int64_t g_stride = 1;
  int64_t g_batch_stride = 0;
  float* mask = nullptr;        // [batch, size, size]
  float* from_start = nullptr;  // [batch, size]
  float* to_end = nullptr;      // [batch, size]
};

absl::Status ValidateDecayMask(const DecayMaskParams& params);
void DecayMaskReference(const DecayMaskParams& params);
absl::Status DecayMaskGpu(const DecayMaskParams& params, const gpu::Stream& stream);

}  // namespace gdn
