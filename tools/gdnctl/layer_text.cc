#include "tools/gdnctl/layer_text.h"

#include "absl/strings/str_format.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

std::string_view ProjectionsText(ProjectionLayout layout) {
  switch (layout) {
    case ProjectionLayout::kInterleaved:
      return "two matrices, interleaved by key head: [q k v z], [b a]";
    case ProjectionLayout::kFlat:
      return "four matrices: [q k v], z, b, a";
    case ProjectionLayout::kSeparate:
      return "six matrices: q, k, v, z, b, a";
    case ProjectionLayout::kFlatGroupedBa:
      return "three matrices: [q k v], z, and by key head [b a]";
  }
  return "";
}

std::string DecayText(const LayerSpec& spec) {
  const bool raw = spec.a_log == ALogConvention::kRaw;
  const std::string a = spec.decay_rank == 0 ? "a" : StrCat("a (of rank ", spec.decay_rank, ")");
  const std::string_view each = spec.dims.decays_by_channel() ? ", for each key channel" : "";
  if (spec.decay_gate == DecayGate::kSoftplus) {
    return StrCat(raw ? "-exp(A_log)" : "A", " softplus(", a, " + dt_bias)", each);
  }
  return StrCat(absl::StrFormat("%g sigmoid(", spec.decay_lower_bound), raw ? "exp(A_log)" : "-A", " (", a,
                " + dt_bias))", each);
}

// "2 " in front of what it multiplies; nothing for 1.
std::string Factor(float factor) { return factor == 1.0f ? "" : absl::StrFormat("%g ", factor); }

}  // namespace

std::vector<LayerSpecLine> DescribeLayerSpec(const LayerSpec& spec) {
  const bool silu = spec.output_gate == GateActivation::kSilu;
  return {{"dims", LayerDimsToString(spec.dims)},
          {"projections", std::string(ProjectionsText(spec.projections))},
          {"convolution",
           spec.convolutions == ConvLayout::kJoint ? "one kernel over q, k, v" : "a kernel each for q, k, v"},
          {"decay", DecayText(spec)},
          {"beta", absl::StrFormat("%ssigmoid(b), in (0, %g)", Factor(spec.beta_scale), spec.beta_scale)},
          {"value heads", spec.value_heads == ValueHeadOrder::kGrouped ? "grouped: head h reads key head h / (HV / H)"
                                                                       : "tiled: head h reads key head h mod H"},
          {"norm", absl::StrFormat("%s o / sqrt(mean o^2 + %g)",
                                   spec.norm_weight == NormWeight::kAsStored ? "w" : "(1 + w)", spec.norm_epsilon)},
          {"output gate", StrCat(Factor(spec.output_gate_scale), silu ? "silu(z)" : "sigmoid(z)",
                                 spec.output_gate_rank == 0 ? "" : StrCat(", z of rank ", spec.output_gate_rank))}};
}

}  // namespace gdn
