#include "kernels/slot_access.h"

#include <utility>

#include "base/status_macros.h"

namespace gdn {
namespace {

absl::StatusOr<SlotImage> Decode(const StateLayout& layout, bool transposed_base, const float* slot,
                                 const SlotExtent& extent) {
  std::vector<float> scratch;
  const SlotView view = ViewSlot(layout, transposed_base, slot, extent, scratch);
  const auto owned = [](absl::Span<const float> part) { return std::vector<float>(part.begin(), part.end()); };
  std::vector<float> base = owned(view.base);
  if (!view.base_bf16.empty()) {
    base.resize(view.base_bf16.size());
    ConvertToFloat(DType::kBF16, view.base_bf16.data(), base.size(), base.data());
  }
  return SlotImage{.base = std::move(base),
                   .log_k = owned(view.log_k),
                   .log_u = owned(view.log_u),
                   .log_g = owned(view.log_g),
                   .conv = owned(view.conv)};
}

absl::Status Encode(const StateLayout& layout, bool transposed_base, int64_t token_count, const SlotImage& image,
                    float* slot) {
  const SlotExtent extent{
      .token_count = token_count,
      .log_length = static_cast<int32_t>(static_cast<int64_t>(image.log_g.size()) / layout.dims().decay_features())};
  const SlotView view{.base = image.base,
                      .base_bf16 = {},
                      .log_k = image.log_k,
                      .log_u = image.log_u,
                      .log_g = image.log_g,
                      .conv = image.conv,
                      .draft_conv = {}};
  GDN_RETURN_IF_ERROR(CheckSlotView(layout, extent, view));
  FillSlot(layout, transposed_base, extent, view, slot);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SlotImage> ReadSlot(Backend& backend, const StatePoolView& pool, int32_t slot, int32_t log_length,
                                   int64_t token_count) {
  const SlotExtent extent{.token_count = token_count, .log_length = log_length};
  GDN_RETURN_IF_ERROR(ValidateSlot(pool, slot));
  GDN_RETURN_IF_ERROR(CheckSlotExtent(pool.layout, extent));
  std::vector<float> copy(static_cast<size_t>(pool.layout.slot_floats()));
  GDN_RETURN_IF_ERROR(backend.CopyOut(copy.data(), pool.slot(slot), copy.size() * sizeof(float)));
  GDN_RETURN_IF_ERROR(backend.Synchronize());
  return Decode(pool.layout, backend.info().transposed_base, copy.data(), extent);
}

absl::Status WriteSlot(Backend& backend, const StatePoolView& pool, int32_t slot, int64_t token_count,
                       const SlotImage& image) {
  GDN_RETURN_IF_ERROR(ValidateSlot(pool, slot));
  std::vector<float> copy(static_cast<size_t>(pool.layout.slot_floats()));
  GDN_RETURN_IF_ERROR(Encode(pool.layout, backend.info().transposed_base, token_count, image, copy.data()));
  GDN_RETURN_IF_ERROR(backend.CopyIn(pool.slot(slot), copy.data(), copy.size() * sizeof(float)));
  return backend.Synchronize();
}

absl::StatusOr<SlotImage> ReadHostSlot(const StatePoolView& pool, int32_t slot, int32_t log_length,
                                       int64_t token_count) {
  const SlotExtent extent{.token_count = token_count, .log_length = log_length};
  GDN_RETURN_IF_ERROR(ValidateSlot(pool, slot));
  GDN_RETURN_IF_ERROR(CheckSlotExtent(pool.layout, extent));
  return Decode(pool.layout, /*transposed_base=*/false, pool.slot(slot), extent);
}

absl::Status WriteHostSlot(const StatePoolView& pool, int32_t slot, int64_t token_count, const SlotImage& image) {
  GDN_RETURN_IF_ERROR(ValidateSlot(pool, slot));
  return Encode(pool.layout, /*transposed_base=*/false, token_count, image, pool.slot(slot));
}

}  // namespace gdn
