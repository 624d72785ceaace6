// Reads and writes whole slots of any backend, for tests and tools. Steps and moves use slot_codec.h on their own
// memory instead.
//
// Thread safety: only for the thread that issues operators; waits for them. Ownership: a SlotImage owns its data.
//
//   GDN_ASSIGN_OR_RETURN(SlotImage image, ReadSlot(backend, pool, slot, log_length, token_count));
//   GDN_RETURN_IF_ERROR(WriteSlot(backend, pool, other, token_count, image));
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/slot_codec.h"

namespace gdn {

// The contents of a slot without a draft, in wire order.
struct SlotImage {
  std::vector<float> base = {};   // [HV, K, V]; rounded when written if the slot's base is not float32
  std::vector<float> log_k = {};  // [log_length, H, K]
  std::vector<float> log_u = {};  // [log_length, HV, V]
  std::vector<float> log_g = {};  // [log_length, HV], or [log_length, HV, K]
  std::vector<float> conv = {};   // [C, W - 1], newest last; empty for a bare operator
};

// Read a slot in backend memory, and write one; both wait for the backend. `token_count`: tokens that the state has
// seen, which says where the convolution columns are; `log_length`: log entries to read. INVALID_ARGUMENT if the slot
// is outside the pool, or if the log or the image's sizes do not fit the layout; then nothing is written. WriteSlot
// zeroes the rest of the slot, so that equal images make equal slots.
absl::StatusOr<SlotImage> ReadSlot(Backend& backend, const StatePoolView& pool, int32_t slot, int32_t log_length,
                                   int64_t token_count);
absl::Status WriteSlot(Backend& backend, const StatePoolView& pool, int32_t slot, int64_t token_count,
                       const SlotImage& image);

// ReadSlot and WriteSlot for a pool in host memory whose bases are [HV, K, V], not transposed.
absl::StatusOr<SlotImage> ReadHostSlot(const StatePoolView& pool, int32_t slot, int32_t log_length,
                                       int64_t token_count);
absl::Status WriteHostSlot(const StatePoolView& pool, int32_t slot, int64_t token_count, const SlotImage& image);

}  // namespace gdn
