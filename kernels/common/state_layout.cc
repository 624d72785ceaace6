#include "kernels/common/state_layout.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

inline constexpr int64_t kFloatBytes = sizeof(float);
inline constexpr int64_t kSectionAlignment = 16;  // floats: one cache line, and one 512-bit vector

int64_t RoundUp(int64_t floats) { return (floats + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment; }

}  // namespace

absl::StatusOr<StateLayout> StateLayout::Make(const LayerDims& dims, int32_t max_draft, DType base_dtype) {
  GDN_RETURN_IF_ERROR(ValidateLayerDims(dims));
  if (max_draft < 1 || max_draft > kMaxDraftLimit) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     absl::StrCat("max_draft is ", max_draft, "; expected 1 to ", kMaxDraftLimit, " tokens"),
                     {{"field", "max_draft"}, {"value", std::to_string(max_draft)}});
  }
  if (base_dtype != DType::kF32 && base_dtype != DType::kBF16) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     StrCat("base_dtype is ", DTypeName(base_dtype), "; expected F32 or BF16"),
                     {{"field", "base_dtype"}, {"value", std::string(DTypeName(base_dtype))}});
  }
  StateLayout layout;
  layout.base_dtype_ = base_dtype;
  layout.dims_ = dims;
  layout.max_draft_ = max_draft;
  layout.log_k_offset_ = RoundUp((layout.base_bytes() + kFloatBytes - 1) / kFloatBytes);
  layout.log_u_offset_ = layout.log_k_offset_ + RoundUp(layout.log_rows() * dims.key_features());
  layout.log_g_offset_ = layout.log_u_offset_ + RoundUp(layout.log_rows() * dims.value_features());
  layout.conv_offset_ = layout.log_g_offset_ + RoundUp(layout.log_rows() * dims.decay_features());
  layout.slot_floats_ = layout.conv_offset_ + RoundUp(layout.conv_columns() * dims.conv_channels());
  return layout;
}

std::string NumericsIdFor(std::string_view backend_numerics_id, DType base_dtype) {
  return StrCat(backend_numerics_id, base_dtype == DType::kBF16 ? "-state=bf16" : "");
}

void ReadBase(const StatePoolView& pool, int32_t slot, float* base) {
  ConvertToFloat(pool.layout.base_dtype(), pool.slot(slot) + pool.layout.base_offset(),
                 static_cast<size_t>(pool.layout.dims().state_elements()), base);
}

void WriteBase(const StatePoolView& pool, int32_t slot, const float* base) {
  ConvertFromFloat(base, static_cast<size_t>(pool.layout.dims().state_elements()), pool.layout.base_dtype(),
                   pool.slot(slot) + pool.layout.base_offset());
}

void RoundElements(DType dtype, float* values, int64_t count) {
  if (dtype == DType::kF32) return;
  std::vector<uint16_t> rounded(static_cast<size_t>(count));
  ConvertFromFloat(values, rounded.size(), dtype, rounded.data());
  ConvertToFloat(dtype, rounded.data(), rounded.size(), values);
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
