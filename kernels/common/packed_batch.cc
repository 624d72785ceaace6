#include "kernels/common/packed_batch.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "base/count_limits.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"
#include "kernels/common/slot_set.h"

namespace gdn {
namespace {

constexpr char kOp[] = "batch";

// The batch that this thread found valid last: a launch's operators get the same one, each after the other. It is known
// by what its arrays hold, so a batch that has changed is checked again, wherever it is.
class LastValid {
 public:
  bool Is(const PackedBatch& batch, int32_t slot_count) const {
    return batch.sequences == sequences_ && slot_count == slot_count_ &&
           std::equal(offsets_.begin(), offsets_.end(), batch.cu_seqlens) &&
           std::equal(slots_.begin(), slots_.end(), batch.slots);
  }
  void Set(const PackedBatch& batch, int32_t slot_count) {
    sequences_ = batch.sequences;
    slot_count_ = slot_count;
    offsets_.assign(batch.cu_seqlens, batch.cu_seqlens + batch.sequences + 1);
    slots_.assign(batch.slots, batch.slots + batch.sequences);
  }

 private:
  int32_t sequences_ = -1;
  int32_t slot_count_ = 0;
  std::vector<int32_t> offsets_;
  std::vector<int32_t> slots_;
};

absl::Status ValidateSequences(const PackedBatch& batch, int32_t slot_count) {
  SlotSet used(batch.sequences);
  bool distinct = true;
  for (int32_t i = 0; i < batch.sequences; ++i) {
    GDN_RETURN_IF_ERROR(RequireEntryAtLeast(kOp, "cu_seqlens", i + 1, batch.cu_seqlens[i + 1], batch.cu_seqlens[i],
                                            ": offsets never fall"));
    if (batch.slots[i] < 0) continue;
    GDN_RETURN_IF_ERROR(RequireEntryRange(kOp, "slots", i, batch.slots[i], 0, int64_t{slot_count} - 1,
                                          ", or a negative number for padding"));
    distinct &= used.Add(batch.slots[i]);
  }
  if (distinct) return absl::OkStatus();
  std::vector<int32_t> slots;
  std::copy_if(batch.slots, batch.slots + batch.sequences, std::back_inserter(slots), [](int32_t s) { return s >= 0; });
  return RepeatedSlot(kOp, "slots", std::move(slots));
}

}  // namespace

absl::Status ValidatePackedBatch(const PackedBatch& batch, int32_t slot_count) {
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "sequences", batch.sequences, 0));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "cu_seqlens", batch.cu_seqlens));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "cu_seqlens[0]", batch.cu_seqlens[0], 0, 0));
  if (batch.sequences == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "slots", batch.slots));
  thread_local LastValid last;
  if (last.Is(batch, slot_count)) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(ValidateSequences(batch, slot_count));
  last.Set(batch, slot_count);
  return absl::OkStatus();
}

absl::Status ValidateTokenCounts(absl::string_view op, const PackedBatch& batch, const int64_t* token_counts) {
  GDN_RETURN_IF_ERROR(RequirePointer(op, "token_counts", token_counts));
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (batch.slots[i] < 0) continue;
    GDN_RETURN_IF_ERROR(RequireEntryRange(op, "token_counts", i, token_counts[i], 0, kMaxTokenCount));
  }
  return absl::OkStatus();
}

void ZeroPaddingRows(const PackedBatch& batch, int64_t row_floats, float* output) {
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (batch.slots[i] < 0) std::fill_n(output + batch.cu_seqlens[i] * row_floats, batch.length(i) * row_floats, 0.0f);
  }
}

}  // namespace gdn
