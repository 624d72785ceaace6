#include "kernels/delta_rule_decode/delta_rule_decode.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace gdn {

absl::Status ValidateDeltaRuleDecode(const DeltaRuleDecodeParams& params) {
  GDN_RETURN_IF_ERROR(ValidateDeltaRule(params.rule));
  const PackedBatch& batch = params.rule.batch;
  if (batch.sequences == 0) return absl::OkStatus();
  if (params.log_lengths == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("log_lengths is null; expected the log entries in use of ", batch.sequences, " sequences"));
  }
  const int32_t max_draft = params.rule.pool.layout.max_draft();
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (batch.length(i) > max_draft) {
      return absl::InvalidArgumentError(absl::StrCat("sequence ", i, " has ", batch.length(i),
                                                     " tokens; expected at most max_draft = ", max_draft,
                                                     " in a decode call (use prefill for more)"));
    }
    if (batch.slots[i] >= 0 && (params.log_lengths[i] < 0 || params.log_lengths[i] >= kLogCapacity)) {
      return absl::InvalidArgumentError(
          absl::StrCat("log_lengths[", i, "] is ", params.log_lengths[i], "; expected 0 to ", kLogCapacity - 1));
    }
  }
  return ValidateBaseSlots(params.rule.pool, batch, params.base_slots);
}

absl::Status ValidateBaseSlots(const StatePoolView& pool, const PackedBatch& batch, const int32_t* base_slots) {
  if (base_slots == nullptr) return absl::OkStatus();
  std::vector<int32_t> own(batch.slots, batch.slots + batch.sequences);
  std::sort(own.begin(), own.end());
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (batch.slots[i] < 0) continue;
    if (base_slots[i] < 0 || base_slots[i] >= pool.slot_count) {
      return absl::InvalidArgumentError(
          absl::StrCat("base_slots[", i, "] is ", base_slots[i], "; expected a slot, 0 to ", pool.slot_count - 1));
    }
    // Sequences run at the same time: a base that one may fold over, no other may read.
    if (base_slots[i] != batch.slots[i] && std::binary_search(own.begin(), own.end(), base_slots[i])) {
      return absl::InvalidArgumentError(absl::StrCat("base_slots[", i, "] = ", base_slots[i],
                                                     " is another sequence's slot; expected a base that no sequence "
                                                     "of the call writes, or one call for each of the two"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateMaterializeState(const MaterializeStateParams& params) {
  GDN_RETURN_IF_ERROR(ValidateLayerDims(params.pool.layout.dims()));
  if (params.count < 0) {
    return absl::InvalidArgumentError(absl::StrCat("count is ", params.count, "; expected >= 0"));
  }
  if (params.count == 0) return absl::OkStatus();
  if (params.src == nullptr || params.dst == nullptr || params.log_lengths == nullptr || params.pool.data == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("src, dst, log_lengths or pool.data is null; expected ", params.count, " entries of each"));
  }
  const int32_t slots = params.pool.slot_count;
  std::vector<int32_t> written(params.dst, params.dst + params.count);
  std::sort(written.begin(), written.end());
  if (const auto twice = std::adjacent_find(written.begin(), written.end()); twice != written.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot ", *twice, " is in dst more than once; expected distinct slots"));
  }
  // Entries run at the same time: what one writes, no other may read.
  const auto another_writes = [&](int32_t i, int32_t slot) {
    return slot != params.dst[i] && std::binary_search(written.begin(), written.end(), slot);
  };
  for (int32_t i = 0; i < params.count; ++i) {
    if (params.dst[i] < 0 || params.dst[i] >= slots) {
      return absl::InvalidArgumentError(
          absl::StrCat("dst[", i, "] is ", params.dst[i], "; expected a slot, 0 to ", slots - 1));
    }
    if (params.src[i] < 0) continue;
    if (params.src[i] >= slots) {
      return absl::InvalidArgumentError(absl::StrCat("src[", i, "] is ", params.src[i], "; expected a slot, 0 to ",
                                                     slots - 1, ", or a negative number for a fresh state"));
    }
    if (another_writes(i, params.src[i])) {
      return absl::InvalidArgumentError(absl::StrCat("src[", i, "] = ", params.src[i],
                                                     " is another entry's dst; expected one call for each of the two"));
    }
    if (params.src_bases != nullptr && (params.src_bases[i] < 0 || params.src_bases[i] >= slots)) {
      return absl::InvalidArgumentError(
          absl::StrCat("src_bases[", i, "] is ", params.src_bases[i], "; expected a slot, 0 to ", slots - 1));
    }
    if (params.src_bases != nullptr && another_writes(i, params.src_bases[i])) {
      return absl::InvalidArgumentError(absl::StrCat("src_bases[", i, "] = ", params.src_bases[i],
                                                     " is another entry's dst; expected one call for each of the two"));
    }
    if (params.log_lengths[i] < 0 || params.log_lengths[i] > params.pool.layout.log_rows()) {
      return absl::InvalidArgumentError(absl::StrCat("log_lengths[", i, "] is ", params.log_lengths[i],
                                                     "; expected 0 to ", params.pool.layout.log_rows()));
    }
  }
  return absl::OkStatus();
}

}  // namespace gdn
