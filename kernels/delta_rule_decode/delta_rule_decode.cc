#include "kernels/delta_rule_decode/delta_rule_decode.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/common/contract.h"

namespace gdn {
namespace {

// The parts of a call run at the same time: a slot of the pool that one reads, and does not own, none may write.
// `written` is sorted, `whose` says what a writer's slot is.
absl::Status RequireReadable(absl::string_view op, absl::string_view name, int32_t slot, int32_t own,
                             const StatePoolView& pool, const std::vector<int32_t>& written, absl::string_view whose) {
  GDN_RETURN_IF_ERROR(RequireRange(op, name, slot, 0, int64_t{pool.slot_count} - 1));
  if (slot == own || !std::binary_search(written.begin(), written.end(), slot)) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
      absl::StrCat(op, ": ", name, " = ", slot, " is another ", whose,
                   "; expected a slot that nothing else of the call writes, or one call for each of the two"),
      {{"field", std::string(name)}});
}

}  // namespace

absl::Status ValidateDeltaRuleDecode(const DeltaRuleDecodeParams& params) {
  GDN_RETURN_IF_ERROR(ValidateDeltaRule(params.rule));
  return ValidateDecodeLogs("DeltaRuleDecode", params.rule.pool, params.rule.batch, params.log_lengths,
                            params.base_slots);
}

absl::Status ValidateDecodeLogs(absl::string_view op, const StatePoolView& pool, const PackedBatch& batch,
                                const int32_t* log_lengths, const int32_t* base_slots) {
  if (batch.sequences == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(op, "log_lengths", log_lengths));
  std::vector<int32_t> own(batch.slots, batch.slots + batch.sequences);
  std::sort(own.begin(), own.end());
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (const int32_t max_draft = pool.layout.max_draft(); batch.length(i) > max_draft) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kTooManyTokens,
                       absl::StrCat(op, ": sequence ", i, " has ", batch.length(i), " tokens; a decode takes up to ",
                                    max_draft, " (max_draft = ", max_draft, "). Use a prefill"));
    }
    if (batch.slots[i] < 0) continue;
    GDN_RETURN_IF_ERROR(
        RequireRange(op, absl::StrCat("log_lengths[", i, "]"), log_lengths[i], 0, int64_t{kLogCapacity} - 1));
    if (base_slots == nullptr) continue;
    GDN_RETURN_IF_ERROR(RequireReadable(op, absl::StrCat("base_slots[", i, "]"), base_slots[i], batch.slots[i], pool,
                                        own, "sequence's slot"));
  }
  return absl::OkStatus();
}

void AdvanceLogs(const DeltaRuleDecodeParams& params) {
  const PackedBatch& batch = params.rule.batch;
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (batch.slots[i] < 0) continue;
    const int32_t reached = params.log_lengths[i] + batch.length(i);
    params.log_lengths[i] = params.draft ? reached : reached % kLogCapacity;
  }
}

absl::Status ValidateMaterializeState(const MaterializeStateParams& params) {
  return ValidateFold({.op = "MaterializeState", .src = "src", .dst = "dst", .src_bases = "src_bases"}, params);
}

absl::Status ValidateFold(const FoldNames& names, const MaterializeStateParams& params) {
  const absl::string_view op = names.op;
  const std::string anothers = absl::StrCat("entry's ", names.dst);
  GDN_RETURN_IF_ERROR(ValidateLayerDims(params.pool.layout.dims()));
  GDN_RETURN_IF_ERROR(RequireAtLeast(op, "count", params.count, 0));
  if (params.count == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointers(op, {{names.src, params.src},
                                           {names.dst, params.dst},
                                           {"log_lengths", params.log_lengths},
                                           {"pool.data", params.pool.data}}));
  std::vector<int32_t> written(params.dst, params.dst + params.count);
  GDN_RETURN_IF_ERROR(RequireDistinct(op, names.dst, written));
  for (int32_t i = 0; i < params.count; ++i) {
    const auto name = [i](absl::string_view array) { return absl::StrCat(array, "[", i, "]"); };
    const int32_t dst = params.dst[i];
    GDN_RETURN_IF_ERROR(RequireRange(op, name(names.dst), dst, 0, int64_t{params.pool.slot_count} - 1));
    if (params.src[i] < 0) continue;  // a fresh state
    GDN_RETURN_IF_ERROR(RequireReadable(op, name(names.src), params.src[i], dst, params.pool, written, anothers));
    if (params.src_bases != nullptr) {
      GDN_RETURN_IF_ERROR(
          RequireReadable(op, name(names.src_bases), params.src_bases[i], dst, params.pool, written, anothers));
    }
    GDN_RETURN_IF_ERROR(RequireRange(op, name("log_lengths"), params.log_lengths[i], 0, params.pool.layout.log_rows()));
  }
  return absl::OkStatus();
}

}  // namespace gdn
