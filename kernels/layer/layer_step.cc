// What a LayerStep must be before it runs: ValidateLayerStep of gdn_layer.h.

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"
#include "kernels/layer/gdn_layer.h"

namespace gdn {
namespace {

constexpr char kOp[] = "layer step";

absl::Status InvalidStep(std::string_view why, absl::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, why, absl::StrCat(kOp, ": ", message));
}

absl::Status ValidateWeights(const LayerStep& step) {
  if (step.weights == nullptr) {
    return InvalidStep(reason::kInputNeedsModel, "weights is null; only delta_rule input does without");
  }
  GDN_RETURN_IF_ERROR(ValidateLayerWeights(*step.weights));
  if (step.weights->dims != step.pool.layout.dims()) {
    return InvalidStep(reason::kStateMismatch,
                       absl::StrCat("weights have ", LayerDimsToString(step.weights->dims), ", the state pool ",
                                    LayerDimsToString(step.pool.layout.dims())));
  }
  return absl::OkStatus();
}

absl::Status ValidateInputs(const LayerStep& step) {
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "output", step.output));
  switch (step.kind) {
    case InputKind::kHiddenStates:
      return RequirePointer(kOp, "hidden_states", step.hidden_states);
    case InputKind::kProjected:
      return RequirePointers(kOp, {{"mixed_qkv", step.mixed_qkv}, {"z", step.z}, {"b", step.b}, {"a", step.a}});
    case InputKind::kDeltaRule:
      return RequirePointers(kOp, {{"q", step.q}, {"k", step.k}, {"v", step.v}, {"g", step.g}, {"beta", step.beta}});
    case InputKind::kNone:
      break;
  }
  return InvalidStep(reason::kInputMissing, "kind is none; expected hidden_states, projected or delta_rule");
}

}  // namespace

absl::Status ValidateLayerStep(const LayerStep& step) {
  GDN_RETURN_IF_ERROR(ValidatePackedBatch(step.batch, step.pool.slot_count));
  if (step.batch.tokens() == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "pool.data", step.pool.data));
  GDN_RETURN_IF_ERROR(ValidateInputs(step));
  if (step.kind == InputKind::kDeltaRule) return RequireFinite(kOp, "scale", step.scale);
  GDN_RETURN_IF_ERROR(ValidateWeights(step));
  return ValidateTokenCounts(kOp, step.batch, step.token_counts);
}

absl::Status ValidatePrefillStep(const LayerStep& step) {
  GDN_RETURN_IF_ERROR(ValidateLayerStep(step));
  if (step.base_slots == nullptr && !step.draft) return absl::OkStatus();
  return InvalidStep(
      reason::kStateMismatch,
      "a prefill was given base_slots or draft, which are for decodes; fold the state into the slot first "
      "(MaterializeState)");
}

absl::Status ValidateDecodeStep(const LayerStep& step, const int32_t* log_lengths) {
  GDN_RETURN_IF_ERROR(ValidateLayerStep(step));
  return ValidateDecodeLogs(kOp, step.pool, step.batch, log_lengths, step.base_slots);
}

}  // namespace gdn
