// What a LayerStep must be before it runs: ValidateLayerStep of gdn_layer.h.

#include "absl/strings/str_cat.h"
#include "base/draft_tree.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"
#include "kernels/layer/gdn_layer.h"

namespace gdn {
namespace {

constexpr char kLayerStepOp[] = "layer step";

absl::Status InvalidStep(std::string_view why, absl::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, why, absl::StrCat(kLayerStepOp, ": ", message));
}

absl::Status ValidateWeights(const LayerStep& step) {
  if (step.weights == nullptr) {
    return InvalidStep(reason::kInputNeedsModel, "weights is null; only delta_rule input does without");
  }
  GDN_RETURN_IF_ERROR(step.kind == InputKind::kProjected ? ValidateMixerWeights(*step.weights)
                                                         : ValidateLayerWeights(*step.weights));
  if (step.weights->spec.dims != step.pool.layout.dims()) {
    return InvalidStep(reason::kStateMismatch,
                       absl::StrCat("weights have ", LayerDimsToString(step.weights->spec.dims), ", the state pool ",
                                    LayerDimsToString(step.pool.layout.dims())));
  }
  return absl::OkStatus();
}

absl::Status ValidateInputs(const LayerStep& step) {
  GDN_RETURN_IF_ERROR(RequirePointer(kLayerStepOp, "output", step.output.data));
  switch (step.kind) {
    case InputKind::kHiddenStates:
      return RequirePointer(kLayerStepOp, "hidden_states", step.hidden_states.data);
    case InputKind::kProjected:
      return RequirePointers(
          kLayerStepOp,
          {{"mixed_qkv", step.mixed_qkv.data}, {"z", step.z.data}, {"b", step.b.data}, {"a", step.a.data}});
    case InputKind::kDeltaRule:
      return RequirePointers(
          kLayerStepOp,
          {{"q", step.q.data}, {"k", step.k.data}, {"v", step.v.data}, {"g", step.g.data}, {"beta", step.beta.data}});
    case InputKind::kNone:
      break;
  }
  return InvalidStep(reason::kInputMissing, "kind is none; expected hidden_states, projected or delta_rule");
}

absl::Status ValidateParents(const LayerStep& step) {
  if (step.draft_parents == nullptr) return absl::OkStatus();
  if (!step.draft) return InvalidStep(reason::kStateMismatch, "draft_parents are given for tokens that are no draft");
  for (int32_t i = 0; i < step.batch.sequences; ++i) {
    const int32_t first = step.batch.cu_seqlens[i];
    GDN_RETURN_IF_ERROR(
        CheckDraftParents(absl::MakeConstSpan(step.draft_parents + first, static_cast<size_t>(step.batch.length(i))),
                          "draft_parents", first));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Span<const LayerField> LayerFields(InputKind kind, const LayerDims& dims,
                                         std::array<LayerField, kMaxStepFields>& storage) {
  switch (kind) {
    case InputKind::kHiddenStates:
      storage[0] = {&LayerStep::hidden_states, dims.hidden_size};
      return absl::MakeConstSpan(storage).first(1);
    case InputKind::kProjected:
      storage[0] = {&LayerStep::mixed_qkv, dims.conv_channels()};
      storage[1] = {&LayerStep::z, dims.value_features()};
      storage[2] = {&LayerStep::b, dims.value_heads};
      storage[3] = {&LayerStep::a, dims.decay_features()};
      return absl::MakeConstSpan(storage).first(4);
    case InputKind::kDeltaRule:
      storage[0] = {&LayerStep::q, dims.key_features()};
      storage[1] = {&LayerStep::k, dims.key_features()};
      storage[2] = {&LayerStep::v, dims.value_features()};
      storage[3] = {&LayerStep::g, dims.decay_features()};
      storage[4] = {&LayerStep::beta, dims.value_heads};
      return storage;
    case InputKind::kNone:
      break;
  }
  return {};
}

int64_t LayerOutputFeatures(InputKind kind, const LayerDims& dims) {
  return kind == InputKind::kHiddenStates ? dims.hidden_size : dims.value_features();
}

absl::Status ValidateLayerStep(const LayerStep& step) {
  GDN_RETURN_IF_ERROR(ValidatePackedBatch(step.batch, step.pool.slot_count));
  if (step.batch.tokens() == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kLayerStepOp, "pool.data", step.pool.data));
  GDN_RETURN_IF_ERROR(ValidateInputs(step));
  if (step.kind == InputKind::kDeltaRule) return RequireFinite(kLayerStepOp, "scale", step.delta_rule.scale);
  GDN_RETURN_IF_ERROR(ValidateWeights(step));
  return ValidateTokenCounts(kLayerStepOp, step.batch, step.token_counts);
}

absl::Status ValidatePrefillStep(const LayerStep& step) {
  GDN_RETURN_IF_ERROR(ValidateLayerStep(step));
  for (int32_t i = 0; step.call_tokens != nullptr && i < step.batch.sequences; ++i) {
    GDN_RETURN_IF_ERROR(RequireEntryAtLeast(kLayerStepOp, "call_tokens", i, step.call_tokens[i], step.batch.length(i)));
  }
  if (step.base_slots == nullptr && !step.draft && step.draft_parents == nullptr) return absl::OkStatus();
  return InvalidStep(reason::kStateMismatch,
                     "a prefill was given base_slots, draft or draft_parents, which are for decodes; fold the state "
                     "into the slot first "
                     "(MaterializeState)");
}

absl::Status ValidateDecodeStep(const LayerStep& step, const int32_t* log_lengths) {
  GDN_RETURN_IF_ERROR(ValidateLayerStep(step));
  GDN_RETURN_IF_ERROR(ValidateParents(step));
  return ValidateDecodeLogs(kLayerStepOp, step.pool, step.batch, log_lengths, step.base_slots);
}

}  // namespace gdn
