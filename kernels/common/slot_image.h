// A state slot's contents in wire order, and its conversion from and to slots laid out as state_layout.h says (the
// CPU's layout, which keeps the base in wire order).
//
// Thread safety: free functions; calls on different slots may run at a time. Ownership: a SlotImage owns its data.
//
//   GDN_ASSIGN_OR_RETURN(SlotImage image, ReadHostSlot(pool, slot, log_length, token_count));
//   GDN_RETURN_IF_ERROR(WriteHostSlot(pool, other, token_count, image));
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/common/state_layout.h"

namespace gdn {

struct SlotImage {
  std::vector<float> base;   // [HV, K, V]
  std::vector<float> log_k;  // [log_length, H, K]
  std::vector<float> log_u;  // [log_length, HV, V]
  std::vector<float> log_g;  // [log_length, HV]
  std::vector<float> conv;   // [C, W - 1], newest last; empty for a bare operator
};

// INVALID_ARGUMENT where the slot is outside the pool.
absl::Status ValidateSlot(const StatePoolView& pool, int32_t slot);

// The number of log entries `image` holds. INVALID_ARGUMENT where its sizes do not fit `layout` or the log is longer
// than a slot's.
absl::StatusOr<int32_t> ValidateSlotImage(const StateLayout& layout, const SlotImage& image);

// As Backend::ZeroSlot, ReadSlot and WriteSlot, on host memory.
absl::Status ZeroHostSlot(const StatePoolView& pool, int32_t slot);
absl::StatusOr<SlotImage> ReadHostSlot(const StatePoolView& pool, int32_t slot, int32_t log_length,
                                       int64_t token_count);
absl::Status WriteHostSlot(const StatePoolView& pool, int32_t slot, int64_t token_count, const SlotImage& image);

}  // namespace gdn
