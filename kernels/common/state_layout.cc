#include "kernels/common/state_layout.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

inline constexpr int64_t kSectionAlignment = 16;  // floats: one cache line, and one 512-bit vector

int64_t RoundUp(int64_t floats) { return (floats + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment; }

}  // namespace

absl::StatusOr<StateLayout> StateLayout::Make(const LayerDims& dims, int32_t max_draft) {
  GDN_RETURN_IF_ERROR(ValidateLayerDims(dims));
  if (max_draft < 1 || max_draft > kMaxDraftLimit) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     absl::StrCat("max_draft is ", max_draft, "; expected 1 to ", kMaxDraftLimit, " tokens"),
                     {{"field", "max_draft"}, {"value", std::to_string(max_draft)}});
  }
  StateLayout layout;
  layout.dims_ = dims;
  layout.max_draft_ = max_draft;
  layout.log_k_offset_ = RoundUp(dims.state_elements());
  layout.log_u_offset_ = layout.log_k_offset_ + RoundUp(layout.log_rows() * dims.key_features());
  layout.log_g_offset_ = layout.log_u_offset_ + RoundUp(layout.log_rows() * dims.value_features());
  layout.conv_offset_ = layout.log_g_offset_ + RoundUp(int64_t{layout.log_rows()} * dims.value_heads);
  layout.slot_floats_ = layout.conv_offset_ + RoundUp(layout.conv_columns() * dims.conv_channels());
  return layout;
}

bool JoinPools(const StatePoolView& pool, StatePoolView* all) {
  float* const begin = std::min(all->data, pool.data);
  float* const end = std::max(all->slot(all->slot_count), pool.slot(pool.slot_count));
  const int64_t slots = (end - begin) / all->layout.slot_floats();
  if (slots > std::numeric_limits<int32_t>::max()) return false;
  all->data = begin;
  all->slot_count = static_cast<int32_t>(slots);
  return true;
}

int32_t SlotIn(const StatePoolView& all, const StatePoolView& pool, int32_t index) {
  if (index < 0) return index;
  return index + static_cast<int32_t>((pool.data - all.data) / all.layout.slot_floats());
}

absl::Status ValidateSlot(const StatePoolView& pool, int32_t slot) {
  GDN_RETURN_IF_ERROR(RequirePointer("slot", "pool.data", pool.data));
  return RequireRange("slot", "index", slot, 0, int64_t{pool.slot_count} - 1);
}

}  // namespace gdn
