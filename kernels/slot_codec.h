// Converts between a slot in a backend's layout and its parts in wire order.
//
// Thread safety: free functions on host memory. Ownership: views borrow.
//
//   std::vector<float> scratch;
//   SlotView view = ViewSlot(layout, /*transposed_base=*/false, block.floats(), extent, scratch);
//   GDN_RETURN_IF_ERROR(CheckSlotView(layout, extent, view));
//   FillSlot(layout, /*transposed_base=*/true, extent, view, other.floats());
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/common/state_layout.h"

namespace gdn {

// The counts of a session that say which log entries and convolution columns of its slot are in use.
struct SlotExtent {
  int64_t token_count = 0;   // accepted tokens since the session began, without the pending draft
  int32_t log_length = 0;    // entries of the log in use, < L
  int32_t draft_length = 0;  // pending draft: log entries after log_length, columns from token_count on
  // Index in the pending draft of each of its tokens' parents, or -1 (base/draft_tree.h); empty for a chain.
  std::vector<int32_t> draft_parents = {};

  friend bool operator==(const SlotExtent&, const SlotExtent&) = default;
};

// The used parts of a slot in wire order, borrowed. n = log_length + draft_length log entries, d = draft_length
// columns.
struct SlotView {
  // [HV, K, V]; empty if left out. At most one of base and base_bf16 is set: base_bf16 for a bfloat16 base.
  absl::Span<const float> base;
  absl::Span<const uint16_t> base_bf16 = {};
  absl::Span<const float> log_k;       // [n, H, K]
  absl::Span<const float> log_u;       // [n, HV, V]
  absl::Span<const float> log_g;       // [n, HV], or [n, HV, K]
  absl::Span<const float> conv;        // [C, W - 1], newest last; empty for a bare operator
  absl::Span<const float> draft_conv;  // [C, d], oldest first

  bool has_base() const { return !base.empty() || !base_bf16.empty(); }
};

// Returns views of the slot's used tensors in wire order. Tensors that the slot has in this order are viewed in `slot`
// (layout.slot_floats() floats of host memory); the others are converted into `scratch`. Both must live as long as the
// view. `transposed_base`: the slot's base is [HV, V, K]. The extent must have passed CheckSlotExtent.
SlotView ViewSlot(const StateLayout& layout, bool transposed_base, const float* slot, const SlotExtent& extent,
                  std::vector<float>& scratch);

// INVALID_ARGUMENT (STATE_MISMATCH) if the extent does not fit the layout, or the view's sizes do not fit both.
// FAILED_PRECONDITION (STATE_MISMATCH) if the draft is longer than layout.max_draft(). CheckSlotView checks both; a
// view without a base is valid.
absl::Status CheckSlotExtent(const StateLayout& layout, const SlotExtent& extent);
absl::Status CheckSlotView(const StateLayout& layout, const SlotExtent& extent, const SlotView& view);

// Converts the view's base to the layout's dtype if it has the other one (widens or rounds it). Returns the memory that
// the view then points to, which the caller keeps as long as the view; nullptr if nothing was converted.
std::shared_ptr<const void> ConvertBase(const StateLayout& layout, SlotView& view);

// Writes the whole slot (layout.slot_floats() floats of host memory), with zeros for what the view leaves out, and
// converts a base of the other dtype. `transposed_base`: the slot's base becomes [HV, V, K]. The view must have passed
// CheckSlotView.
void FillSlot(const StateLayout& layout, bool transposed_base, const SlotExtent& extent, const SlotView& view,
              float* slot);

}  // namespace gdn
