// The input projections of a layer: from hidden states to the inputs of the convolution and the gates.
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
  // Joint outputs, if decays go by head; MixerInput splits them.
  float* qkvz = nullptr;  // [tokens, 2 H K + 2 HV V]
  float* ba = nullptr;    // [tokens, 2 HV]
  // Separate outputs, if decays go by channel. low_a and low_z: the first matrix's output if a, or z, is a product of
  // two matrices; else null.
  float* mixed_qkv = nullptr;  // [tokens, C]
  float* b = nullptr;          // [tokens, HV]
  float* a = nullptr;          // [tokens, HV, K]
  float* low_a = nullptr;      // [tokens, decay_rank]
  float* low_z = nullptr;      // [tokens, output_gate_rank]
  // Written here only with separate outputs; otherwise MixerInput writes it.
  float* z = nullptr;  // [tokens, HV, V]
};

// Issues the projections of dense hidden states [tokens, D] to the tensors of `to`: the joint ones, or the separate
// ones if decays go by channel. The weights must be valid. Fails as Backend::Projections does.
absl::Status ProjectLayerInputs(Backend& backend, ProjectionPath path, const LayerWeights& weights,
                                const InputTensor& hidden_states, int64_t tokens, const ProjectedInputs& to);

}  // namespace gdn
