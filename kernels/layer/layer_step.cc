// What a LayerStep must be before it runs: ValidateLayerStep of gdn_layer.h.

#include <cmath>

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
  const auto require = [](const char* name, const float* pointer) { return RequirePointer(kOp, name, pointer); };
  GDN_RETURN_IF_ERROR(require("output", step.output));
  switch (step.kind) {
    case InputKind::kHiddenStates:
      return require("hidden_states", step.hidden_states);
    case InputKind::kProjected:
      GDN_RETURN_IF_ERROR(require("mixed_qkv", step.mixed_qkv));
      GDN_RETURN_IF_ERROR(require("z", step.z));
      GDN_RETURN_IF_ERROR(require("b", step.b));
      return require("a", step.a);
    case InputKind::kDeltaRule:
      GDN_RETURN_IF_ERROR(require("q", step.q));
      GDN_RETURN_IF_ERROR(require("k", step.k));
      GDN_RETURN_IF_ERROR(require("v", step.v));
      GDN_RETURN_IF_ERROR(require("g", step.g));
      return require("beta", step.beta);
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
  if (step.kind == InputKind::kDeltaRule) {
    if (std::isfinite(step.scale)) return absl::OkStatus();
    return InvalidStep(reason::kValueOutOfRange, absl::StrCat("scale is ", step.scale, "; expected a finite number"));
  }
  GDN_RETURN_IF_ERROR(ValidateWeights(step));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "token_counts", step.token_counts));
  for (int32_t i = 0; i < step.batch.sequences; ++i) {
    if (step.batch.slots[i] < 0) continue;
    GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, absl::StrCat("token_counts[", i, "]"), step.token_counts[i], 0));
  }
  return absl::OkStatus();
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
  if (step.batch.sequences == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "log_lengths", log_lengths));
  for (int32_t i = 0; i < step.batch.sequences; ++i) {
    const int32_t max_draft = step.pool.layout.max_draft();
    if (step.batch.length(i) > max_draft) {
      return InvalidStep(reason::kTooManyTokens,
                         absl::StrCat("sequence ", i, " has ", step.batch.length(i), " tokens; a decode takes up to ",
                                      max_draft, ". Use a prefill"));
    }
    if (step.batch.slots[i] < 0) continue;
    GDN_RETURN_IF_ERROR(
        RequireRange(kOp, absl::StrCat("log_lengths[", i, "]"), log_lengths[i], 0, int64_t{kLogCapacity} - 1));
  }
  return ValidateBaseSlots(step.pool, step.batch, step.base_slots);
}

}  // namespace gdn
