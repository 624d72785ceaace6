#include "kernels/slot_codec.h"

#include <algorithm>
#include <string_view>
#include <type_traits>

#include "base/count_limits.h"
#include "base/draft_tree.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/threads/this_thread.h"

namespace gdn {
namespace {

// Rows and columns of a block whose lines, of both matrices, stay in the first cache.
constexpr int64_t kBlock = 16;

// to [columns, rows] = from [rows, columns], transposed.
template <typename Element>
void Transpose(const Element* from, int64_t rows, int64_t columns, Element* to) {
  for (int64_t c0 = 0; c0 < columns; c0 += kBlock) {
    const int64_t c1 = std::min(c0 + kBlock, columns);
    for (int64_t r0 = 0; r0 < rows; r0 += kBlock) {
      const int64_t r1 = std::min(r0 + kBlock, rows);
      for (int64_t c = c0; c < c1; ++c) {
        for (int64_t r = r0; r < r1; ++r) to[c * rows + r] = from[r * columns + c];
      }
    }
  }
}

template <typename Element>
void TransposeHeads(const Element* from, int64_t heads, int64_t rows, int64_t columns, Element* to) {
  const int64_t head = rows * columns;
  for (int64_t hv = 0; hv < heads; ++hv) {
    Transpose(from + hv * head, rows, columns, to + hv * head);
    GiveWay();
  }
}

// A wire tensor [C, tokens] whose column j is the ring row of token first + j.
template <typename Move>
void ForEachConvElement(const StateLayout& layout, int64_t first, int64_t tokens, Move move) {
  const int64_t channels = layout.dims().conv_channels();
  for (int64_t j = 0; j < tokens; ++j) {
    const int64_t row = layout.conv_offset() + layout.conv_column(first + j) * channels;
    for (int64_t c = 0; c < channels; ++c) move(row + c, c * tokens + j);
  }
}

absl::Status RequireSize(std::string_view part, size_t size, int64_t expected) {
  if (size == static_cast<size_t>(expected)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kStateMismatch,
                   StrCat(part, " has ", size, " elements; the layout and the counts take ", expected),
                   {{"field", std::string(part)}});
}

}  // namespace

absl::Status CheckSlotExtent(const StateLayout& layout, const SlotExtent& extent) {
  if (extent.draft_length > layout.max_draft()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kStateMismatch,
                     StrCat("a draft of ", extent.draft_length, " tokens is pending; this server keeps at most ",
                            layout.max_draft(), " (--max-draft). Accept or drop it where the state is from"),
                     {{"field", "draft_length"}});
  }
  const int64_t entries = int64_t{extent.log_length} + extent.draft_length;
  // Beyond its limit a count would overflow on the way to a column of the convolution.
  if (extent.token_count < 0 || extent.token_count > kMaxTokenCount) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kStateMismatch,
                     StrCat("a slot stands for ", extent.token_count, " tokens, expected 0 .. ", kMaxTokenCount),
                     {{"field", "token_count"}});
  }
  if (extent.log_length < 0 || extent.draft_length < 0 || entries > layout.log_rows()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kStateMismatch,
                     StrCat("a slot has ", layout.log_rows(), " log entries; ", extent.log_length, " in use and ",
                            extent.draft_length, " of a draft do not fit"),
                     {{"field", "log_length"}});
  }
  if (!extent.draft_parents.empty() && extent.draft_parents.size() != static_cast<size_t>(extent.draft_length)) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kStateMismatch,
                     StrCat("a draft of ", extent.draft_length, " tokens has ", extent.draft_parents.size(),
                            " parents; expected one a token, or none"),
                     {{"field", "draft_parents"}});
  }
  return CheckDraftParents(extent.draft_parents, "draft_parents");
}

absl::Status CheckSlotView(const StateLayout& layout, const SlotExtent& extent, const SlotView& view) {
  GDN_RETURN_IF_ERROR(CheckSlotExtent(layout, extent));
  const LayerDims& dims = layout.dims();
  const int64_t entries = int64_t{extent.log_length} + extent.draft_length;
  if (view.has_base()) {
    GDN_RETURN_IF_ERROR(RequireSize("base", view.base.size() + view.base_bf16.size(), dims.state_elements()));
  }
  GDN_RETURN_IF_ERROR(RequireSize("log_k", view.log_k.size(), entries * dims.key_features()));
  GDN_RETURN_IF_ERROR(RequireSize("log_u", view.log_u.size(), entries * dims.value_features()));
  GDN_RETURN_IF_ERROR(RequireSize("log_g", view.log_g.size(), entries * dims.decay_features()));
  const bool ring = dims.conv_width > 0;
  GDN_RETURN_IF_ERROR(RequireSize("conv", view.conv.size(), ring ? dims.conv_channels() * (dims.conv_width - 1) : 0));
  return RequireSize("draft_conv", view.draft_conv.size(), ring ? dims.conv_channels() * extent.draft_length : 0);
}

SlotView ViewSlot(const StateLayout& layout, bool transposed_base, const float* slot, const SlotExtent& extent,
                  std::vector<float>& scratch) {
  const LayerDims& dims = layout.dims();
  const int64_t entries = int64_t{extent.log_length} + extent.draft_length;
  const int64_t kept = dims.conv_width > 0 ? dims.conv_width - 1 : 0;
  const int64_t drafted = dims.conv_width > 0 ? extent.draft_length : 0;
  const auto section = [slot](int64_t offset, int64_t count) {
    return absl::Span<const float>(slot + offset, static_cast<size_t>(count));
  };
  SlotView view{.base = {},
                .base_bf16 = {},
                .log_k = section(layout.log_k_offset(), entries * dims.key_features()),
                .log_u = section(layout.log_u_offset(), entries * dims.value_features()),
                .log_g = section(layout.log_g_offset(), entries * dims.decay_features()),
                .conv = {},
                .draft_conv = {}};
  const int64_t turned = transposed_base ? layout.log_k_offset() - layout.base_offset() : 0;
  scratch.resize(static_cast<size_t>(turned + (kept + drafted) * dims.conv_channels()));
  float* free = scratch.data();
  WithBaseElement(layout, [&](auto element) {
    using Element = decltype(element);
    const auto* base = reinterpret_cast<const Element*>(slot + layout.base_offset());
    if (transposed_base) {
      TransposeHeads(base, dims.value_heads, dims.value_dim, dims.key_dim, reinterpret_cast<Element*>(free));
      base = reinterpret_cast<const Element*>(free);
      free += turned;
    }
    const absl::Span<const Element> all(base, static_cast<size_t>(dims.state_elements()));
    if constexpr (std::is_same_v<Element, float>) {
      view.base = all;
    } else {
      view.base_bf16 = all;
    }
  });
  const auto columns = [&](int64_t first, int64_t tokens) {
    const absl::Span<const float> part(free, static_cast<size_t>(tokens * dims.conv_channels()));
    ForEachConvElement(layout, first, tokens, [slot, free](int64_t ring, int64_t wire) { free[wire] = slot[ring]; });
    free += part.size();
    return part;
  };
  if (kept > 0) view.conv = columns(extent.token_count - kept, kept);
  if (drafted > 0) view.draft_conv = columns(extent.token_count, drafted);
  return view;
}

namespace {

// The view's base as `Element`s in wire order: the view's own, or `converted`.
template <typename Element>
const Element* BaseAs(const SlotView& view, std::vector<Element>& converted) {
  if constexpr (std::is_same_v<Element, float>) {
    if (!view.base.empty()) return view.base.data();
    converted.resize(view.base_bf16.size());
    ConvertToFloat(DType::kBF16, view.base_bf16.data(), converted.size(), converted.data());
  } else {
    if (!view.base_bf16.empty()) return view.base_bf16.data();
    converted.resize(view.base.size());
    ConvertFromFloat(view.base.data(), converted.size(), DType::kBF16, converted.data());
  }
  return converted.data();
}

void FillBase(const StateLayout& layout, bool transposed_base, const SlotView& view, float* slot) {
  const LayerDims& dims = layout.dims();
  WithBaseElement(layout, [&](auto element) {
    using Element = decltype(element);
    auto* base = reinterpret_cast<Element*>(slot + layout.base_offset());
    std::vector<Element> converted;
    const Element* from = BaseAs(view, converted);
    if (transposed_base) {
      TransposeHeads(from, dims.value_heads, dims.key_dim, dims.value_dim, base);
    } else {
      std::copy_n(from, dims.state_elements(), base);
    }
  });
}

}  // namespace

std::shared_ptr<const void> ConvertBase(const StateLayout& layout, SlotView& view) {
  return WithBaseElement(layout, [&view](auto element) -> std::shared_ptr<const void> {
    using Element = decltype(element);
    auto converted = std::make_shared<std::vector<Element>>();
    BaseAs(view, *converted);
    if (converted->empty()) return nullptr;
    if constexpr (std::is_same_v<Element, float>) {
      view.base = *converted;
      view.base_bf16 = {};
    } else {
      view.base = {};
      view.base_bf16 = *converted;
    }
    return converted;
  });
}

void FillSlot(const StateLayout& layout, bool transposed_base, const SlotExtent& extent, const SlotView& view,
              float* slot) {
  const LayerDims& dims = layout.dims();
  // From the last float that the base is in on, which may be half of it.
  const int64_t base_floats = layout.base_bytes() / static_cast<int64_t>(sizeof(float));
  std::fill(slot + (view.has_base() ? base_floats : layout.base_offset()), slot + layout.slot_floats(), 0.0f);
  if (view.has_base()) FillBase(layout, transposed_base, view, slot);
  std::copy(view.log_k.begin(), view.log_k.end(), slot + layout.log_k_offset());
  std::copy(view.log_u.begin(), view.log_u.end(), slot + layout.log_u_offset());
  std::copy(view.log_g.begin(), view.log_g.end(), slot + layout.log_g_offset());
  if (dims.conv_width == 0) return;
  const auto columns = [&layout, slot](absl::Span<const float> part, int64_t first, int64_t tokens) {
    ForEachConvElement(layout, first, tokens, [part, slot](int64_t ring, int64_t wire) { slot[ring] = part[wire]; });
  };
  columns(view.conv, extent.token_count - (dims.conv_width - 1), dims.conv_width - 1);
  columns(view.draft_conv, extent.token_count, extent.draft_length);
}

}  // namespace gdn
