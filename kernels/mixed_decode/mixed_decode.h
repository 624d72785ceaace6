// A decode step between a layer's projections, in one call: MixerInput, DeltaRuleDecode and GatedRmsNorm. A GPU may do
// it in one launch; Backend::MixedDecode's default calls the three one by one. Outputs and states have the same bits.
//
// Thread safety: as the three. Ownership: none.
//
//   GDN_RETURN_IF_ERROR(backend.MixedDecode({.input = input, .decode = decode, .norm = norm}));
#pragma once

#include "kernels/delta_rule_decode/delta_rule_decode.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/mixer_input/mixer_input.h"

namespace gdn {

// The params of the three. `decode` reads what `input` writes, and `norm` what `decode` writes. After the call only
// norm.y, the states and decode.log_lengths are defined; the tensors in between are scratch.
struct MixedDecodeParams {
  MixerInputParams input;
  DeltaRuleDecodeParams decode;
  GatedRmsNormParams norm;

  BatchArrays arrays() const {
    return {.batch = input.batch,
            .token_counts = input.token_counts,
            .log_lengths = decode.log_lengths,
            .base_slots = decode.base_slots};
  }
};

// Makes the checks of the three operators. INVALID_ARGUMENT also if their tensors do not follow each other.
absl::Status ValidateMixedDecode(const MixedDecodeParams& params);

// True if MixedDecodeGpu takes the call: one token a sequence at most, W = 4, K up to 128 and V up to 256, both
// multiples of 4, tensors aligned to 16 bytes; with decays by channel K = 64 or 128, and V a multiple of 64.
bool TakesMixedDecodeGpu(const MixedDecodeParams& params);
// Issues one launch on `stream`, and moves the host's log_lengths. The params must be valid and taken. `batch` is
// params.arrays() on the device.
absl::Status MixedDecodeGpu(const MixedDecodeParams& params, const gpu::DeviceBatch& batch, const gpu::Stream& stream);

}  // namespace gdn
