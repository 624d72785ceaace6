// A Gated DeltaNet layer: the operators in order, for each kind of input, as prefill and as decode.
//
//   hidden_states -> projection -> split -> conv1d + SiLU -> l2norm, gates -> delta rule -> gated RMSNorm -> projection
//   projected     enters at conv1d and leaves after the gated RMSNorm
//   delta_rule    is the delta rule alone (with q scaled, and q, k normalised on request)
// Thread safety: a GdnLayerRunner is for one thread. Ownership: it owns its workspace, which grows to the largest call
// seen.
// Bits: a sequence's results never depend on the other sequences of the call.
//
//   GdnLayerRunner runner(backend);
//   GDN_RETURN_IF_ERROR(runner.Decode(step, log_lengths));
#pragma once

#include <cstdint>
#include <initializer_list>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/layer/layer_weights.h"

namespace gdn {

// One step of one layer for a packed batch. Pointers are backend memory, but for the index arrays (host).
struct LayerStep {
  const LayerWeights* weights = nullptr;  // nullptr only for kDeltaRule
  StatePoolView pool;
  PackedBatch batch;
  const int64_t* token_counts = nullptr;  // [sequences] host: tokens before this step
  InputKind kind = InputKind::kHiddenStates;
  // Decode only; see DeltaRuleDecodeParams.
  const int32_t* base_slots = nullptr;  // [sequences] host
  bool draft = false;

  const float* hidden_states = nullptr;  // [tokens, D]
  const float* mixed_qkv = nullptr;      // [tokens, C]
  const float* z = nullptr;              // [tokens, HV * V]
  const float* b = nullptr;              // [tokens, HV]
  const float* a = nullptr;              // [tokens, HV]
  const float* q = nullptr;              // [tokens, H * K]
  const float* k = nullptr;              // [tokens, H * K]
  const float* v = nullptr;              // [tokens, HV * V]
  const float* g = nullptr;              // [tokens, HV]
  const float* beta = nullptr;           // [tokens, HV]
  float scale = 0.0f;                    // kDeltaRule: multiplies q; the other kinds use K^-0.5
  bool use_qk_l2norm = false;            // kDeltaRule only; the other kinds always normalise

  float* output = nullptr;  // [tokens, D], or [tokens, HV * V] for projected and delta_rule
};

// INVALID_ARGUMENT naming what is missing, out of range or at odds with the pool. The runner calls these before it
// touches anything.
absl::Status ValidateLayerStep(const LayerStep& step);
absl::Status ValidatePrefillStep(const LayerStep& step);
absl::Status ValidateDecodeStep(const LayerStep& step, const int32_t* log_lengths);

// Tokens after which a prefill call is cut into another segment; a multiple of kChunkTokens. Bounds the workspace.
inline constexpr int32_t kPrefillSegmentTokens = 512;
// From this many tokens in a segment on, the chunked form is used; below it, the scan.
inline constexpr int32_t kChunkedFromTokens = 32;

class GdnLayerRunner {
 public:
  explicit GdnLayerRunner(Backend& backend) : backend_(backend) {}

  // Advances each sequence by its rows. Slots hold folded states (MaterializeState first). Sequences are computed one
  // after the other, each cut at multiples of kPrefillSegmentTokens from its first row.
  absl::Status Prefill(const LayerStep& step);

  // Advances each sequence by its 0 .. max_draft rows through the deferred update. `log_lengths` [sequences], host, in
  // and out.
  absl::Status Decode(const LayerStep& step, int32_t* log_lengths);

 private:
  struct Mixer;  // the tensors from conv1d to the gated norm

  absl::Status Run(const LayerStep& step, int32_t* log_lengths);
  absl::Status RunDeltaRule(const LayerStep& step, int32_t* log_lengths);
  absl::Status RunMixer(const LayerStep& step, int32_t* log_lengths);  // the other kinds
  absl::Status Mix(const LayerStep& step, const Mixer& mixer, int32_t* log_lengths);
  absl::Status DeltaRule(const LayerStep& step, const DeltaRuleParams& rule, int32_t* log_lengths);
  absl::Status ZeroOutput(const LayerStep& step, int32_t sequence);

  // Gives each part its number of floats, 64-byte aligned, null for none; what an earlier call gave is void.
  struct Part {
    float** data;
    int64_t floats;
  };
  absl::Status Reserve(std::initializer_list<Part> parts);

  Backend& backend_;
  DeviceBuffer workspace_;
};

}  // namespace gdn
