#include "kernels/layer/accept_draft.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"

namespace gdn {
namespace {

// Moves `rows` rows of a section of the log, from row L on, to its front. Pieces of L rows do not overlap.
absl::Status MoveToFront(Backend& backend, float* section, int32_t rows, int64_t row_floats) {
  for (int32_t row = 0; row < rows; row += kLogCapacity) {
    const int32_t piece = std::min(kLogCapacity, rows - row);
    GDN_RETURN_IF_ERROR(backend.Copy(section + row * row_floats, section + (row + kLogCapacity) * row_floats,
                                     static_cast<size_t>(piece * row_floats) * sizeof(float)));
  }
  return absl::OkStatus();
}

absl::Status DropFolded(Backend& backend, const StatePoolView& pool, int32_t slot, int32_t rows) {
  const StateLayout& layout = pool.layout;
  const LayerDims& dims = layout.dims();
  float* data = pool.slot(slot);
  GDN_RETURN_IF_ERROR(MoveToFront(backend, data + layout.log_k_offset(), rows, dims.key_features()));
  GDN_RETURN_IF_ERROR(MoveToFront(backend, data + layout.log_u_offset(), rows, dims.value_features()));
  return MoveToFront(backend, data + layout.log_g_offset(), rows, dims.decay_features());
}

}  // namespace

absl::Status FoldAccepted(Backend& backend, const FoldAcceptedParams& params) {
  // The contract is that of a fold of all of them.
  GDN_RETURN_IF_ERROR(ValidateFold({.op = "fold accepted", .src = "slots", .dst = "slots", .src_bases = "base_slots"},
                                   {.pool = params.pool,
                                    .count = params.count,
                                    .src = params.slots,
                                    .dst = params.slots,
                                    .log_lengths = params.log_lengths,
                                    .src_bases = params.base_slots}));
  if (params.folded != nullptr) std::fill_n(params.folded, params.count, uint8_t{0});
  std::vector<int32_t> slots;
  std::vector<int32_t> bases;
  for (bool first = true;; first = false) {
    slots.clear();
    bases.clear();
    for (int32_t i = 0; i < params.count; ++i) {
      if (params.log_lengths[i] < kLogCapacity) continue;
      slots.push_back(params.slots[i]);
      bases.push_back(first && params.base_slots != nullptr ? params.base_slots[i] : params.slots[i]);
    }
    if (slots.empty()) return absl::OkStatus();
    const std::vector<int32_t> lengths(slots.size(), kLogCapacity);
    GDN_RETURN_IF_ERROR(backend.MaterializeState({.pool = params.pool,
                                                  .count = static_cast<int32_t>(slots.size()),
                                                  .src = slots.data(),
                                                  .dst = slots.data(),
                                                  .log_lengths = lengths.data(),
                                                  .src_bases = bases.data()}));
    for (int32_t i = 0; i < params.count; ++i) {
      if (params.log_lengths[i] < kLogCapacity) continue;
      params.log_lengths[i] -= kLogCapacity;
      if (params.folded != nullptr) params.folded[i] = 1;
      GDN_RETURN_IF_ERROR(DropFolded(backend, params.pool, params.slots[i], params.log_lengths[i]));
    }
  }
}

}  // namespace gdn
