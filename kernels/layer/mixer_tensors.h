// The tensors between a layer's projections during one run. Only for kernels/layer.
//
// Thread safety: a plain value. Ownership: none; the tensors are in the runner's workspace.
//
//   GdnLayerRunner::Mixer mixer;
//   GDN_RETURN_IF_ERROR(Reserve({{&mixer.q, tokens * dims.key_features()}, ..}));
#pragma once

#include "kernels/layer/gdn_layer.h"
#include "kernels/layer/layer_inputs.h"

namespace gdn {

// All pointers are backend memory that the mixer does not own. Null if the step does not need the tensor.
struct GdnLayerRunner::Mixer {
  ProjectedInputs in;          // projections of hidden states; all null if the step brings projected inputs
  float* split = nullptr;      // [tokens, C + 2 HV] scratch
  float* convolved = nullptr;  // [tokens, C]
  float* q = nullptr;          // [tokens, H, K]
  float* k = nullptr;          // [tokens, H, K]
  float* g = nullptr;          // [tokens, HV], or [tokens, HV, K]
  float* beta = nullptr;       // [tokens, HV]
  float* records = nullptr;    // for DeltaRuleDecode; null if the backend takes none
  float* output = nullptr;     // [tokens, HV, V]
  float* normed = nullptr;     // [tokens, HV, V], heads in the order of the out-projection's columns; may equal output
  float* terms = nullptr;      // normed as the out-projection's x_terms, in its place; null if that takes none
};

}  // namespace gdn
