#include "base/layer_spec.h"

#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

absl::Status ValidateDecay(const LayerSpec& spec) {
  const bool bounded = spec.decay_gate == DecayGate::kBoundedSigmoid;
  if (bounded ? !(spec.decay_lower_bound < 0.0f && spec.decay_lower_bound >= kLeastDecayLowerBound)
              : spec.decay_lower_bound != 0.0f) {
    return InvalidSpecField(
        "decay_lower_bound", spec.decay_lower_bound,
        bounded ? StrCat("a number below 0 and at least ", kLeastDecayLowerBound, " with a bounded gate")
                : "0 with a softplus gate, which has no bound");
  }
  for (const auto& [field, rank] :
       {std::pair("decay_rank", spec.decay_rank), std::pair("output_gate_rank", spec.output_gate_rank)}) {
    if (rank < 0 || rank > kMaxHiddenSize) return InvalidSpecField(field, rank, "0, or a matrix's rank");
    if (rank > 0 && !spec.dims.decays_by_channel()) {
      return InvalidSpecField(field, rank, "0 where a head has one decay");
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

}  // namespace

absl::Status ValidateLayerSpec(const LayerSpec& spec) {
  GDN_RETURN_IF_ERROR(ValidateLayerDims(spec.dims));
  GDN_RETURN_IF_ERROR(ValidateDecay(spec));
  if (spec.beta_scale != 1.0f && spec.beta_scale != 2.0f)
    return InvalidSpecField("beta_scale", spec.beta_scale, "1 or 2");
  if (!(spec.norm_epsilon > 0.0f && spec.norm_epsilon < 1.0f)) {
    return InvalidSpecField("norm_epsilon", spec.norm_epsilon, "a number above 0 and below 1");
  }
  if (!(spec.output_gate_scale > 0.0f && spec.output_gate_scale <= kMaxOutputGateScale)) {
    return InvalidSpecField("output_gate_scale", spec.output_gate_scale,
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

}  // namespace gdn
