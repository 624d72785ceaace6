// The tensors of one run between a layer's projections. For kernels/layer alone.
//
// Thread safety: a plain value. Ownership: none; they lie in the runner's workspace.
//
//   GdnLayerRunner::Mixer mixer;
//   GDN_RETURN_IF_ERROR(Reserve({{&mixer.q, tokens * dims.key_features()}, ..}));
#pragma once

#include "kernels/layer/gdn_layer.h"
#include "kernels/layer/layer_inputs.h"

namespace gdn {

// In backend memory.
struct GdnLayerRunner::Mixer {
  ProjectedInputs in;          // of hidden states; all null where the step brings its parts
  float* split = nullptr;      // [tokens, C + 2 HV] scratch
  float* convolved = nullptr;  // [tokens, C]
  float* q = nullptr;          // [tokens, H, K]
  float* k = nullptr;          // [tokens, H, K]
  float* g = nullptr;          // [tokens, HV], or [tokens, HV, K]
  float* beta = nullptr;       // [tokens, HV]
  float* records = nullptr;    // what a decode takes from the logs, where the backend wants it
  float* output = nullptr;     // [tokens, HV, V]
  float* normed = nullptr;     // [tokens, HV, V], the heads in the order of the out-projection's columns; maybe output
};

}  // namespace gdn
