// Describes a model family's Gated DeltaNet layer: the formula, and how its weights are laid out in files.
//
//   g    = -exp(A_log) softplus(a + dt_bias), or      beta = beta_scale sigmoid(b)
//          decay_lower_bound sigmoid(exp(A_log) (a + dt_bias))
//   S   <- exp(g) S;  u = beta (v - S^T k);  S <- S + k u^T;  o = S^T q
//   y    = n o / sqrt(mean o^2 + norm_epsilon) output_gate_scale act(z)      n = w, or 1 + w
// If dims.decay is kPerChannel (KDA), a, dt_bias and g have a value for each value head and key channel; A_log has one
// for each value head. If decay_rank (or output_gate_rank) is set, a (or z) is a product of two matrices with no bias
// or activation between them.
// A LayerSpec is all that distinguishes the families: checkpoint readers make one from a config, and kernels compute
// it. Kernels take weights in one layout only, the served form; the loader converts to it.
// Thread safety: plain values and free functions.
//
//   LayerSpec spec{.dims = dims, .output_gate = GateActivation::kSigmoid};
//   GDN_RETURN_IF_ERROR(ValidateLayerSpec(spec));
//   weights.spec = ServedForm(spec);
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/layer_dims.h"

namespace gdn {

// Activation of z before it multiplies the norm's output. silu(x) = x sigmoid(x).
enum class GateActivation : uint8_t { kSilu, kSigmoid };

// Function that maps a to the log decay g. kSoftplus: g = -exp(A_log) softplus(a + dt_bias). kBoundedSigmoid: g =
// decay_lower_bound sigmoid(exp(A_log) (a + dt_bias)).
enum class DecayGate : uint8_t { kSoftplus, kBoundedSigmoid };

// Matrices in which files store the weights of q, k, v, z, b and a; r = HV / H.
// kInterleaved  two matrices: per key head [q K | k K | v r V | z r V], and [b r | a r]
// kFlat         four: [q | k | v] over all heads, z, b, a
// kSeparate     six: q, k, v, z, b, a
// kFlatGroupedBa  three: [q | k | v] and z over all heads, and per key head [b r | a r]
enum class ProjectionLayout : uint8_t { kInterleaved, kFlat, kSeparate, kFlatGroupedBa };

enum class ConvLayout : uint8_t { kJoint, kSeparate };       // one kernel over [q | k | v], or one for each
enum class ALogConvention : uint8_t { kRaw, kNegativeExp };  // files store A_log, or -exp(A_log) in its place
enum class NormWeight : uint8_t { kAsStored, kOnePlus };     // the norm multiplies by the stored w, or by 1 + w
enum class ValueHeadOrder : uint8_t { kGrouped, kTiled };    // value head h reads key head h / (HV / H), or h % H

struct LayerSpec {
  LayerDims dims;

  // The fields of the formula, up to norm_weight. The others are about the files' layout.
  DecayGate decay_gate = DecayGate::kSoftplus;
  float decay_lower_bound = 0.0f;  // kBoundedSigmoid: the lower limit of g, < 0; kSoftplus: 0
  float beta_scale = 1.0f;         // 1, or 2 if the state may have negative eigenvalues
  float norm_epsilon = 1e-6f;
  GateActivation output_gate = GateActivation::kSilu;
  float output_gate_scale = 1.0f;
  NormWeight norm_weight = NormWeight::kAsStored;

  // The layout of the weights in files. Kernels take another one: ServedForm.
  ProjectionLayout projections = ProjectionLayout::kFlat;
  int32_t decay_rank = 0;        // a = W_up (W_down x) of this rank; 0: one matrix
  int32_t output_gate_rank = 0;  // z = W_up (W_down x) of this rank; 0: one matrix
  ConvLayout convolutions = ConvLayout::kJoint;
  ALogConvention a_log = ALogConvention::kRaw;
  ValueHeadOrder value_heads = ValueHeadOrder::kGrouped;

  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

inline constexpr float kMaxOutputGateScale = 1024.0f;
inline constexpr float kLeastDecayLowerBound = -1024.0f;

// OK, or INVALID_ARGUMENT (INVALID_SPEC: field) naming the first field that is out of range or does not fit the others,
// its value and what was expected.
absl::Status ValidateLayerSpec(const LayerSpec& spec);

// Returns the same layer's spec in the layout that kernels take: one conv kernel, value heads grouped, and n *
// output_gate_scale stored as the norm weight. Projections are kFlat, but kInterleaved stays; a_log and the ranks stay.
LayerSpec ServedForm(const LayerSpec& spec);

}  // namespace gdn
