#include "kernels/common/packed_batch.h"

#include <algorithm>
#include <vector>

#include "kernels/common/contract.h"

namespace gdn {

absl::Status ValidatePackedBatch(const PackedBatch& batch, int32_t slot_count) {
  constexpr char kOp[] = "batch";
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "sequences", batch.sequences, 0));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "cu_seqlens", batch.cu_seqlens));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "cu_seqlens[0]", batch.cu_seqlens[0], 0, 0));
  if (batch.sequences == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "slots", batch.slots));
  std::vector<int32_t> used;
  used.reserve(batch.sequences);
  for (int32_t i = 0; i < batch.sequences; ++i) {
    GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, absl::StrCat("cu_seqlens[", i + 1, "]"), batch.cu_seqlens[i + 1],
                                       batch.cu_seqlens[i], ": offsets never fall"));
    if (batch.slots[i] < 0) continue;
    GDN_RETURN_IF_ERROR(RequireRange(kOp, absl::StrCat("slots[", i, "]"), batch.slots[i], 0, int64_t{slot_count} - 1,
                                     ", or a negative number for padding"));
    used.push_back(batch.slots[i]);
  }
  return RequireDistinct(kOp, "slots", used);
}

absl::Status ValidateTokenCounts(absl::string_view op, const PackedBatch& batch, const int64_t* token_counts) {
  GDN_RETURN_IF_ERROR(RequirePointer(op, "token_counts", token_counts));
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (batch.slots[i] < 0) continue;
    GDN_RETURN_IF_ERROR(RequireAtLeast(op, absl::StrCat("token_counts[", i, "]"), token_counts[i], 0));
  }
  return absl::OkStatus();
}

void ZeroPaddingRows(const PackedBatch& batch, int64_t row_floats, float* output) {
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (batch.slots[i] < 0) std::fill_n(output + batch.cu_seqlens[i] * row_floats, batch.length(i) * row_floats, 0.0f);
  }
}

}  // namespace gdn
