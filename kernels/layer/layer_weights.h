// The weights of one Gated DeltaNet layer, in backend memory.
//
// Thread safety: constant after loading. Ownership: none; server/model owns the memory.
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

  // In-projections, in the order of their outputs. kInterleaved: in_qkv is the whole in_proj_qkvz and in_z is empty
  // (rows 0); in_b is the whole in_proj_ba and in_a is empty. kFlat: four matrices.
  WeightMatrix in_qkv;
  WeightMatrix in_z;
  WeightMatrix in_b;
  WeightMatrix in_a;
  // If decays go by channel, in_a has HV * K rows, or a and z are products of two matrices: in_a [decay_rank, D], then
  // a_up; in_z [output_gate_rank, D], then z_up. a_up and z_up are empty otherwise.
  WeightMatrix a_up;  // [HV * K, decay_rank]
  WeightMatrix z_up;  // [HV * V, output_gate_rank]
  WeightMatrix out;   // [D, HV * V]
  // True if the columns of `out` have value heads in tiled order: head i r + j, r = HV / H, is at block j H + i. So
  // they are in files whose quantised blocks span heads.
  bool tiled_out = false;

  const float* conv_weight = nullptr;  // [C, W]
  const float* a_log = nullptr;        // [HV], in the convention of spec.a_log
  const float* dt_bias = nullptr;      // [HV], or [HV, K] if decays go by channel
  const float* norm_weight = nullptr;  // [V]
};

// INVALID_ARGUMENT if the spec is invalid or not in the served form (ServedForm), a matrix's shape does not match it,
// or a pointer is missing. Formats and values are not checked.
absl::Status ValidateLayerWeights(const LayerWeights& weights);
// Validates, with the same errors, only what projected steps read: the spec and all weights except the projections.
absl::Status ValidateMixerWeights(const LayerWeights& weights);

}  // namespace gdn
