// The in-projections of a layer: from hidden states to what enters the convolution and the gates.
//
// Thread safety: as the backend's operators. Ownership: none; all memory is the backend's.
//
//   ProjectedInputs in = {.qkvz = qkvz, .ba = ba};
//   GDN_RETURN_IF_ERROR(ProjectLayerInputs(backend, path, weights, hidden_states, tokens, in));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/layer/layer_weights.h"

namespace gdn {

struct ProjectedInputs {
  // Side by side, for MixerInput to split.
  float* qkvz = nullptr;  // [tokens, 2 H K + 2 HV V]
  float* ba = nullptr;    // [tokens, 2 HV]
  // Apart, where decays go by channel. low_a and low_z are what lies between two matrices, null where there is one.
  float* mixed_qkv = nullptr;  // [tokens, C]
  float* b = nullptr;          // [tokens, HV]
  float* a = nullptr;          // [tokens, HV, K]
  float* low_a = nullptr;      // [tokens, decay_rank]
  float* low_z = nullptr;      // [tokens, output_gate_rank]
  // Written here only where the parts come apart; else MixerInput's to write.
  float* z = nullptr;  // [tokens, HV, V]
};

// The weights are valid.
absl::Status ProjectLayerInputs(Backend& backend, ProjectionPath path, const LayerWeights& weights,
                                const InputTensor& hidden_states, int64_t tokens, const ProjectedInputs& to);

}  // namespace gdn
