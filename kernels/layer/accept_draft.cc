#include "kernels/layer/accept_draft.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "kernels/common/contract.h"

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
  for (const auto& [offset, features] : pool.layout.log_sections()) {
    GDN_RETURN_IF_ERROR(MoveToFront(backend, pool.slot(slot) + offset, rows, features));
  }
  return absl::OkStatus();
}

absl::Status ValidateDraftPath(const StatePoolView& pool, const DraftPath& draft) {
  constexpr char kOp[] = "move draft paths";
  GDN_RETURN_IF_ERROR(ValidateSlot(pool, draft.slot));
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "token_count", draft.token_count, 0));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "log_length", draft.log_length, 0, kLogCapacity - 1));
  for (size_t j = 0; j < draft.path.size(); ++j) {
    const int64_t least = j == 0 ? 0 : int64_t{draft.path[j - 1]} + 1;
    GDN_RETURN_IF_ERROR(RequireEntryRange(kOp, "path", static_cast<int64_t>(j), draft.path[j], least,
                                          int64_t{pool.layout.max_draft()} - 1));
  }
  return absl::OkStatus();
}

// The copies of a path's token from its place in the draft to its place in the path.
void AddMove(const StatePoolView& pool, const DraftPath& draft, int64_t from, int64_t to,
             std::vector<CopyPiece>& pieces) {
  const StateLayout& layout = pool.layout;
  float* const data = pool.slot(draft.slot);
  const auto add = [&](int64_t offset, int64_t from_row, int64_t to_row, int64_t floats) {
    pieces.push_back({data + offset + to_row * floats, data + offset + from_row * floats, floats});
  };
  const int64_t first = draft.log_length;
  for (const auto& [offset, features] : layout.log_sections()) add(offset, first + from, first + to, features);
  if (layout.conv_columns() == 0) return;
  add(layout.conv_offset(), layout.conv_column(draft.token_count + from), layout.conv_column(draft.token_count + to),
      layout.dims().conv_channels());
}

}  // namespace

absl::Status MoveDraftPaths(Backend& backend, const StatePoolView& pool, absl::Span<const DraftPath> paths) {
  for (const DraftPath& draft : paths) GDN_RETURN_IF_ERROR(ValidateDraftPath(pool, draft));
  // A token's place may be another's source. Those that move together are those whose sources have moved before.
  std::vector<std::vector<CopyPiece>> waves;
  for (const DraftPath& draft : paths) {
    std::vector<size_t> wave_of(draft.path.size(), 0);
    for (size_t j = 0; j < draft.path.size(); ++j) {
      const auto to = static_cast<int32_t>(j);
      if (draft.path[j] == to) continue;
      // Whoever is at this place now, where the path goes on with it, leaves first.
      const auto leaving =
          std::lower_bound(draft.path.begin(), draft.path.begin() + static_cast<std::ptrdiff_t>(j), to);
      const auto who = static_cast<size_t>(leaving - draft.path.begin());
      if (who < j && *leaving == to) wave_of[j] = wave_of[who] + 1;
      if (waves.size() <= wave_of[j]) waves.resize(wave_of[j] + 1);
      AddMove(pool, draft, draft.path[j], to, waves[wave_of[j]]);
    }
  }
  for (const std::vector<CopyPiece>& wave : waves) GDN_RETURN_IF_ERROR(backend.CopyPieces(wave));
  return absl::OkStatus();
}

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
