#include "kernels/common/slot_image.h"

#include <algorithm>

#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

// The ring column of token `token`, which is negative for what stands before a session's first.
int64_t RingColumn(int64_t token, int64_t columns) { return (token % columns + columns) % columns; }

absl::Status RequireSize(const char* name, size_t size, int64_t expected) {
  if (size == static_cast<size_t>(expected)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kStateMismatch,
                   absl::StrCat("slot image: ", name, " has ", size, " elements; the layout takes ", expected),
                   {{"field", name}});
}

absl::Status ValidateAccess(const StatePoolView& pool, int32_t slot, int64_t token_count) {
  GDN_RETURN_IF_ERROR(ValidateSlot(pool, slot));
  return RequireAtLeast("slot", "token_count", token_count, 0);
}

// Calls move(ring element, image element) for the columns of tokens token_count - W + 1 .. token_count - 1.
template <typename Move>
void ForEachConvElement(const StateLayout& layout, float* slot, int64_t token_count, Move move) {
  const int64_t kept = layout.dims().conv_width - 1;
  const int64_t channels = layout.dims().conv_channels();
  float* ring = slot + layout.conv_offset();
  for (int64_t j = 0; j < kept; ++j) {
    float* column = ring + RingColumn(token_count - kept + j, layout.conv_columns()) * channels;
    for (int64_t c = 0; c < channels; ++c) move(column[c], c * kept + j);
  }
}

}  // namespace

absl::Status ValidateSlot(const StatePoolView& pool, int32_t slot) {
  GDN_RETURN_IF_ERROR(RequirePointer("slot", "pool.data", pool.data));
  return RequireRange("slot", "index", slot, 0, int64_t{pool.slot_count} - 1);
}

absl::StatusOr<int32_t> ValidateSlotImage(const StateLayout& layout, const SlotImage& image) {
  const LayerDims& dims = layout.dims();
  GDN_RETURN_IF_ERROR(RequireSize("base", image.base.size(), dims.state_elements()));
  const int64_t log_length = static_cast<int64_t>(image.log_g.size()) / dims.value_heads;
  GDN_RETURN_IF_ERROR(RequireSize("log_g", image.log_g.size(), log_length * dims.value_heads));
  GDN_RETURN_IF_ERROR(RequireRange("slot image", "log_length", log_length, 0, layout.log_rows()));
  GDN_RETURN_IF_ERROR(RequireSize("log_k", image.log_k.size(), log_length * dims.key_features()));
  GDN_RETURN_IF_ERROR(RequireSize("log_u", image.log_u.size(), log_length * dims.value_features()));
  const int64_t conv = dims.conv_width > 0 ? dims.conv_channels() * (dims.conv_width - 1) : 0;
  GDN_RETURN_IF_ERROR(RequireSize("conv", image.conv.size(), conv));
  return static_cast<int32_t>(log_length);
}

absl::Status ZeroHostSlot(const StatePoolView& pool, int32_t slot) {
  GDN_RETURN_IF_ERROR(ValidateSlot(pool, slot));
  std::fill_n(pool.slot(slot), pool.layout.slot_floats(), 0.0f);
  return absl::OkStatus();
}

absl::StatusOr<SlotImage> ReadHostSlot(const StatePoolView& pool, int32_t slot, int32_t log_length,
                                       int64_t token_count) {
  const StateLayout& layout = pool.layout;
  const LayerDims& dims = layout.dims();
  GDN_RETURN_IF_ERROR(ValidateAccess(pool, slot, token_count));
  GDN_RETURN_IF_ERROR(RequireRange("slot", "log_length", log_length, 0, layout.log_rows()));
  float* data = pool.slot(slot);
  const auto section = [data](int64_t offset, int64_t count) {
    return std::vector<float>(data + offset, data + offset + count);
  };
  SlotImage image{.base = section(layout.base_offset(), dims.state_elements()),
                  .log_k = section(layout.log_k_offset(), log_length * dims.key_features()),
                  .log_u = section(layout.log_u_offset(), log_length * dims.value_features()),
                  .log_g = section(layout.log_g_offset(), int64_t{log_length} * dims.value_heads),
                  .conv = {}};
  if (dims.conv_width > 0) {
    image.conv.resize(dims.conv_channels() * (dims.conv_width - 1));
    ForEachConvElement(layout, data, token_count, [&image](float& ring, int64_t i) { image.conv[i] = ring; });
  }
  return image;
}

absl::Status WriteHostSlot(const StatePoolView& pool, int32_t slot, int64_t token_count, const SlotImage& image) {
  const StateLayout& layout = pool.layout;
  GDN_RETURN_IF_ERROR(ValidateAccess(pool, slot, token_count));
  GDN_RETURN_IF_ERROR(ValidateSlotImage(layout, image).status());
  // What the image does not say is zero, so that equal images make equal slots.
  GDN_RETURN_IF_ERROR(ZeroHostSlot(pool, slot));
  float* data = pool.slot(slot);
  std::copy(image.base.begin(), image.base.end(), data + layout.base_offset());
  std::copy(image.log_k.begin(), image.log_k.end(), data + layout.log_k_offset());
  std::copy(image.log_u.begin(), image.log_u.end(), data + layout.log_u_offset());
  std::copy(image.log_g.begin(), image.log_g.end(), data + layout.log_g_offset());
  if (layout.dims().conv_width > 0) {
    ForEachConvElement(layout, data, token_count, [&image](float& ring, int64_t i) { ring = image.conv[i]; });
  }
  return absl::OkStatus();
}

}  // namespace gdn
