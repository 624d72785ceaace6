// Between a slot as a backend keeps it and its parts in wire order.
//
// Thread safety: free functions on host memory. Ownership: views borrow.
//
//   std::vector<float> scratch;
//   SlotView view = ViewSlot(layout, /*transposed_base=*/false, block.floats(), extent, scratch);
//   GDN_RETURN_IF_ERROR(CheckSlotView(layout, extent, view));
//   FillSlot(layout, /*transposed_base=*/true, extent, view, other.floats());
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "state_store/session_image.h"

namespace gdn {

// Views into `slot` (layout.slot_floats()) where it is in wire order, and into `scratch` elsewhere.
SlotView ViewSlot(const StateLayout& layout, bool transposed_base, const float* slot, const SlotExtent& extent,
                  std::vector<float>& scratch);

// FAILED_PRECONDITION (STATE_MISMATCH) where the draft is longer than layout.max_draft(), INVALID_ARGUMENT (STATE_MISMATCH)
// where the view's sizes do not fit layout and extent.
absl::Status CheckSlotView(const StateLayout& layout, const SlotExtent& extent, const SlotView& view);

// Writes the whole slot; what the view does not say is zero. The view has been checked.
void FillSlot(const StateLayout& layout, bool transposed_base, const SlotExtent& extent, const SlotView& view,
              float* slot);

// A layer of an image in wire order: views into the image, and into `scratch` elsewhere. Without `base` that part is left as
// it is, whatever its order.
SlotView ViewLayer(const SessionImage& image, const LayerImage& layer, bool base, std::vector<float>& scratch);

}  // namespace gdn
