#include "base/layer_spec.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/error.h"
#include "base/invalid_field.h"
#include "base/status_macros.h"
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

absl::Status ValidateDecay(const LayerSpec& spec) {
  const bool bounded = spec.decay_gate == DecayGate::kBoundedSigmoid;
  if (bounded ? !(spec.decay_lower_bound < 0.0f && spec.decay_lower_bound >= kLeastDecayLowerBound)
              : spec.decay_lower_bound != 0.0f) {
    return InvalidField("decay_lower_bound", spec.decay_lower_bound,
                        bounded
                            ? StrCat("a number below 0 and at least ", kLeastDecayLowerBound, " with a bounded gate")
                            : "0 with a softplus gate, which has no bound");
  }
  for (const auto& [field, rank] :
       {std::pair("decay_rank", spec.decay_rank), std::pair("output_gate_rank", spec.output_gate_rank)}) {
    if (rank < 0 || rank > kMaxHiddenSize)
      return InvalidField(field, rank, "0, or a matrix's rank");
    if (rank > 0 && !spec.dims.decays_by_channel()) {
      return InvalidField(field, rank, "0 where a head has one decay");
    }
  }
  if (!spec.dims.decays_by_channel() || spec.projections == ProjectionLayout::kFlat ||
      spec.projections == ProjectionLayout::kSeparate) {
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   "projections go by key head; expected matrices apart, as decays by channel have them",
                   {{"field", "projections"}});
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

absl::Status ValidateLayerSpec(const LayerSpec& spec) {
  GDN_RETURN_IF_ERROR(ValidateLayerDims(spec.dims));
  GDN_RETURN_IF_ERROR(ValidateDecay(spec));
  if (spec.beta_scale != 1.0f && spec.beta_scale != 2.0f) return InvalidField("beta_scale", spec.beta_scale, "1 or 2");
  if (!(spec.norm_epsilon > 0.0f && spec.norm_epsilon < 1.0f)) {
    return InvalidField("norm_epsilon", spec.norm_epsilon, "a number above 0 and below 1");
  }
  if (!(spec.output_gate_scale > 0.0f && spec.output_gate_scale <= kMaxOutputGateScale)) {
    return InvalidField("output_gate_scale", spec.output_gate_scale,
                        StrCat("a number above 0 and at most ", kMaxOutputGateScale));
  }
  const bool by_key_head =
      spec.projections == ProjectionLayout::kInterleaved || spec.projections == ProjectionLayout::kFlatGroupedBa;
  if (spec.value_heads == ValueHeadOrder::kTiled && by_key_head) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     "value_heads is tiled; expected grouped, as matrices that go by key head are",
                     {{"field", "value_heads"}});
  }
  return absl::OkStatus();
}

LayerSpec ServedForm(const LayerSpec& spec) {
  LayerSpec served = spec;
  served.output_gate_scale = 1.0f;
  served.norm_weight = NormWeight::kAsStored;
  if (spec.projections != ProjectionLayout::kInterleaved) served.projections = ProjectionLayout::kFlat;
  served.convolutions = ConvLayout::kJoint;
  served.value_heads = ValueHeadOrder::kGrouped;
  return served;
}

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
