// Between a slot as a backend keeps it and its parts in wire order.
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

// How much of a slot counts.
struct SlotExtent {
  int64_t token_count = 0;
  int32_t log_length = 0;    // entries of the log in use, < L
  int32_t draft_length = 0;  // entries after those, and columns from token_count on, that wait to be accepted
  // Of a draft that is a tree, of each token (base/draft_tree.h); none: a chain.
  std::vector<int32_t> draft_parents = {};

  friend bool operator==(const SlotExtent&, const SlotExtent&) = default;
};

// The parts of a slot that count, in wire order. n = log_length + draft_length entries, d = draft_length columns.
struct SlotView {
  // [HV, K, V]; empty: left out. At most one of the two is not: bfloat16 where the base is kept so.
  absl::Span<const float> base;
  absl::Span<const uint16_t> base_bf16 = {};
  absl::Span<const float> log_k;       // [n, H, K]
  absl::Span<const float> log_u;       // [n, HV, V]
  absl::Span<const float> log_g;       // [n, HV], or [n, HV, K]
  absl::Span<const float> conv;        // [C, W - 1], newest last; empty for a bare operator
  absl::Span<const float> draft_conv;  // [C, d], oldest first

  bool has_base() const { return !base.empty() || !base_bf16.empty(); }
};

// Views into `slot` (layout.slot_floats()) where it is in wire order, and into `scratch` elsewhere.
SlotView ViewSlot(const StateLayout& layout, bool transposed_base, const float* slot, const SlotExtent& extent,
                  std::vector<float>& scratch);

// FAILED_PRECONDITION (STATE_MISMATCH) where the draft is longer than layout.max_draft(), INVALID_ARGUMENT
// (STATE_MISMATCH) where the extent does not fit the layout; the second also where the view's sizes do not fit both.
absl::Status CheckSlotExtent(const StateLayout& layout, const SlotExtent& extent);
absl::Status CheckSlotView(const StateLayout& layout, const SlotExtent& extent, const SlotView& view);

// Gives the view a base of the layout's dtype where it has one of the other: widened, or rounded. What it then views,
// else nullptr.
std::shared_ptr<const void> ConvertBase(const StateLayout& layout, SlotView& view);

// Writes the whole slot; what the view does not say is zero. The view has been checked. A base of the other dtype than
// the layout's is widened, or rounded.
void FillSlot(const StateLayout& layout, bool transposed_base, const SlotExtent& extent, const SlotView& view,
              float* slot);

}  // namespace gdn
