// The weights of one Gated DeltaNet layer, in backend memory.
//
// Thread safety: constant after loading. Ownership: none here; server/model owns the memory.
//
//   LayerWeights w = model.layer(0);
//   GDN_RETURN_IF_ERROR(ValidateLayerWeights(w));
#pragma once

#include "absl/status/status.h"
#include "base/layer_spec.h"
#include "kernels/projection/projection.h"

namespace gdn {

struct LayerWeights {
  LayerSpec spec;  // in the served form

  // In-projections, in the order their outputs lie side by side. kInterleaved: in_qkv is the whole in_proj_qkvz and
  // in_z is empty (rows 0), in_b is the whole in_proj_ba and in_a is empty. kFlat: four matrices.
  WeightMatrix in_qkv;
  WeightMatrix in_z;
  WeightMatrix in_b;
  WeightMatrix in_a;
  // Where decays go by channel, in_a has HV * K rows, outputs lie apart, and each of a and z may be a product of two
  // matrices: then in_a is [decay_rank, D], in_z [output_gate_rank, D], and these are the second ones. Else empty.
  WeightMatrix a_up;  // [HV * K, decay_rank]
  WeightMatrix z_up;  // [HV * V, output_gate_rank]
  WeightMatrix out;   // [D, HV * V]
  // Out's columns have value heads in tiled order, head i r + j at block j H + i: as a file has them whose quantised
  // blocks span heads.
  bool tiled_out = false;

  const float* conv_weight = nullptr;  // [C, W]
  const float* a_log = nullptr;        // [HV], by spec.a_log
  const float* dt_bias = nullptr;      // [HV], or [HV, K] where decays go by channel
  const float* norm_weight = nullptr;  // [V]
};

// INVALID_ARGUMENT where the spec is not valid or not in the served form, a shape does not follow from it, or a pointer
// is missing.
absl::Status ValidateLayerWeights(const LayerWeights& weights);
// The same for what projected steps read: all but the projections.
absl::Status ValidateMixerWeights(const LayerWeights& weights);

}  // namespace gdn
