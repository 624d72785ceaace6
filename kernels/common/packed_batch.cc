#include "kernels/common/packed_batch.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gdn {

absl::Status ValidatePackedBatch(const PackedBatch& batch, int32_t slot_count) {
  if (batch.sequences < 0) {
    return absl::InvalidArgumentError(absl::StrCat("batch.sequences is ", batch.sequences, "; expected >= 0"));
  }
  if (batch.cu_seqlens == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch.cu_seqlens is null; expected ", int64_t{batch.sequences} + 1, " offsets"));
  }
  if (batch.cu_seqlens[0] != 0) {
    return absl::InvalidArgumentError(absl::StrCat("batch.cu_seqlens[0] is ", batch.cu_seqlens[0], "; expected 0"));
  }
  if (batch.sequences == 0) return absl::OkStatus();
  if (batch.slots == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch.slots is null; expected ", batch.sequences, " slots (negative for padding)"));
  }
  std::vector<int32_t> used;
  used.reserve(batch.sequences);
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (batch.cu_seqlens[i + 1] < batch.cu_seqlens[i]) {
      return absl::InvalidArgumentError(absl::StrCat("batch.cu_seqlens[", i + 1, "] is ", batch.cu_seqlens[i + 1],
                                                     ", below cu_seqlens[", i, "] = ", batch.cu_seqlens[i],
                                                     "; expected offsets that never fall"));
    }
    const int32_t slot = batch.slots[i];
    if (slot >= slot_count) {
      return absl::InvalidArgumentError(absl::StrCat("batch.slots[", i, "] is ", slot,
                                                     "; expected less than the pool's ", slot_count,
                                                     " slots, or a negative number for padding"));
    }
    if (slot >= 0) used.push_back(slot);
  }
  std::sort(used.begin(), used.end());
  if (const auto twice = std::adjacent_find(used.begin(), used.end()); twice != used.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot ", *twice, " is in batch.slots more than once; expected each sequence to have its own"));
  }
  return absl::OkStatus();
}

}  // namespace gdn
