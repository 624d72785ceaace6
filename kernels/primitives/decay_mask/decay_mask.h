// Decay factors between the tokens of a chunk, from their log decays g <= 0. G is the chunk's running sum of g, each g
// clamped first (kernels/common/log_decay.h):
//
//   mask[i][j]   = e^{G_i - G_j} for j <= i, else 0     how much of what token j wrote is left when token i reads
//   from_start[i] = e^{G_i}                             how much of the state before the chunk is left at token i
//   to_end[i]     = e^{G_last - G_i}                    how much of what token i wrote is left after the chunk
// Each exponent is the later sum minus the earlier; the opposite sign would make strong decay growth. G and its
// differences are double, rounded before exp. e^{G_i} e^{-G_j} would be 0 times infinity for strong decay.
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

// Params of decay masks: `batch` chunks of `size` tokens each. Outputs that are null are not computed.
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
