#include "kernels/delta_rule_decode/delta_rule_decode.h"

#include <optional>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "kernels/common/contract.h"
#include "kernels/common/slot_set.h"

namespace gdn {
namespace {

// Entry `index` of `array`, which names a slot to read.
struct SourceEntry {
  absl::string_view array;
  int32_t index;
  int32_t slot;
};

// The parts of a call run at the same time: a slot of the pool that one reads, and does not own, none may write.
// `written` are the slots that the call writes, `whose` says what a writer's slot is.
absl::Status RequireReadable(absl::string_view op, const SourceEntry& source, int32_t own, const StatePoolView& pool,
                             const SlotSet& written, absl::string_view whose) {
  GDN_RETURN_IF_ERROR(RequireEntryRange(op, source.array, source.index, source.slot, 0, int64_t{pool.slot_count} - 1));
  if (source.slot == own || !written.Contains(source.slot)) return absl::OkStatus();
  const std::string name = absl::StrCat(source.array, "[", source.index, "]");
  return InvalidField(op, name, name, " = ", source.slot, " is another ", whose,
                      "; expected a slot that nothing else of the call writes, or one call for each of the two");
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
  std::optional<SlotSet> own;  // the sequences' slots, once a base is elsewhere
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (const int32_t max_draft = pool.layout.max_draft(); batch.length(i) > max_draft) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kTooManyTokens,
                       absl::StrCat(op, ": sequence ", i, " has ", batch.length(i), " tokens; a decode takes up to ",
                                    max_draft, " (max_draft = ", max_draft, "). Use a prefill"));
    }
    if (batch.slots[i] < 0) continue;
    GDN_RETURN_IF_ERROR(RequireEntryRange(op, "log_lengths", i, log_lengths[i], 0, int64_t{kLogCapacity} - 1));
    if (base_slots == nullptr || base_slots[i] == batch.slots[i]) continue;
    if (!own.has_value()) {
      own.emplace(batch.sequences);
      for (int32_t j = 0; j < batch.sequences; ++j) own->Add(batch.slots[j]);
    }
    GDN_RETURN_IF_ERROR(
        RequireReadable(op, {"base_slots", i, base_slots[i]}, batch.slots[i], pool, *own, "sequence's slot"));
  }
  return absl::OkStatus();
}

void AdvanceLogs(const PackedBatch& batch, bool draft, int32_t* log_lengths) {
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (batch.slots[i] < 0) continue;
    const int32_t reached = log_lengths[i] + batch.length(i);
    log_lengths[i] = draft ? reached : reached % kLogCapacity;
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
  SlotSet written(params.count);
  bool distinct = true;
  for (int32_t i = 0; i < params.count; ++i) distinct &= written.Add(params.dst[i]);
  if (!distinct) return RepeatedSlot(op, names.dst, std::vector<int32_t>(params.dst, params.dst + params.count));
  for (int32_t i = 0; i < params.count; ++i) {
    const int32_t dst = params.dst[i];
    GDN_RETURN_IF_ERROR(RequireEntryRange(op, names.dst, i, dst, 0, int64_t{params.pool.slot_count} - 1));
    if (params.src[i] < 0) continue;  // a fresh state
    GDN_RETURN_IF_ERROR(RequireReadable(op, {names.src, i, params.src[i]}, dst, params.pool, written, anothers));
    if (params.src_bases != nullptr) {
      GDN_RETURN_IF_ERROR(
          RequireReadable(op, {names.src_bases, i, params.src_bases[i]}, dst, params.pool, written, anothers));
    }
    GDN_RETURN_IF_ERROR(
        RequireEntryRange(op, "log_lengths", i, params.log_lengths[i], 0, params.pool.layout.log_rows()));
  }
  return absl::OkStatus();
}

}  // namespace gdn
