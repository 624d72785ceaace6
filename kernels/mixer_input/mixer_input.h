// The part of a layer between its in-projections and the delta rule, in one call: split, causal conv1d + SiLU, l2norm
// of q and k, both gates. A GPU does it in one launch; Backend::MixerInput's default calls the operators one by one.
//
// Formulas: qkvz_split.h, causal_conv1d.h, qk_l2norm.h, gating.h. The convolution columns in the slots advance as
// causal_conv1d.h says. Inputs are either projections (qkvz, ba; then z is written here) or already split (mixed_qkv,
// b, a; then the caller has z). Dims that decay by channel need split inputs.
// Thread safety: concurrent calls must use different slots. Ownership: none.
//
//   MixerInputParams p{.pool = pool, .batch = batch, .token_counts = counts, .layout = layout, .qkvz = y, ...};
//   GDN_RETURN_IF_ERROR(backend.MixerInput(p));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/packed_batch.h"
#include "kernels/common/state_layout.h"
#include "kernels/gating/gating.h"
#include "kernels/gpu/stream.h"
#include "kernels/qkvz_split/qkvz_split.h"

namespace gdn {

struct MixerInputParams {
  StatePoolView pool = {};
  PackedBatch batch = {};
  const int64_t* token_counts = nullptr;  // [sequences] host memory: each session's tokens before this call, >= 0

  // Joint projections, of which `layout` says the order: set both, or neither.
  ProjectionLayout layout = ProjectionLayout::kFlat;
  const float* qkvz = nullptr;     // [tokens, 2 H K + 2 HV V]
  const float* ba = nullptr;       // [tokens, 2 HV]
  float* split_scratch = nullptr;  // [tokens, C + 2 HV]; a backend may or may not use it
  // Split inputs: set all three if qkvz and ba are null; not used otherwise.
  const float* mixed_qkv = nullptr;  // [tokens, C]
  const float* b = nullptr;          // [tokens, HV]
  const float* a = nullptr;          // [tokens, HV], or [tokens, HV, K] if the dims decay by channel

  const float* conv_weight = nullptr;  // [C, W]
  ALogConvention a_log_convention = ALogConvention::kRaw;
  DecayGate decay_gate = DecayGate::kSoftplus;
  float decay_lower_bound = 0.0f;
  float beta_scale = 1.0f;
  const float* a_log = nullptr;    // [HV]
  const float* dt_bias = nullptr;  // [HV], or [HV, K]
  float scale = 1.0f;              // multiplies the normalised q

  float* convolved = nullptr;  // [tokens, C]; the delta rule reads v in channels [2 H K, C). The rest is scratch.
  float* z = nullptr;          // [tokens, HV, V]; written if qkvz is given
  float* q = nullptr;          // [tokens, H, K]
  float* k = nullptr;          // [tokens, H, K]
  float* g = nullptr;          // [tokens, HV], or [tokens, HV, K]
  float* beta = nullptr;       // [tokens, HV]

  // Set if a decode follows and the backend's DecodeRecordFloats is not 0: receives the log data that the decode reads.
  // The two arrays below are used only with it.
  float* records = nullptr;              // [DecodeRecordFloats]
  const int32_t* log_lengths = nullptr;  // [sequences] host memory, as in DeltaRuleDecodeParams
  const int32_t* base_slots = nullptr;   // [sequences] host memory, or null

  BatchArrays arrays() const {
    if (records == nullptr) return {.batch = batch, .token_counts = token_counts};
    return {.batch = batch, .token_counts = token_counts, .log_lengths = log_lengths, .base_slots = base_slots};
  }
};

// INVALID_ARGUMENT if the batch or the dims are invalid, a number is out of range, a pointer is missing, or joint
// inputs are given with dims that decay by channel. Without tokens, all pointers but the batch's may be null.
absl::Status ValidateMixerInput(const MixerInputParams& params);

// Issues one launch on `stream`, and a second for records unless the blocks of the first can write them (e.g. 64 < K <=
// 128, one token a sequence). The params must be valid. `batch` is params.batch, params.token_counts and, for records,
// params.log_lengths and params.base_slots on the device.
absl::Status MixerInputGpu(const MixerInputParams& params, const gpu::DeviceBatch& batch, const gpu::Stream& stream);

}  // namespace gdn
