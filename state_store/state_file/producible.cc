#include "state_store/state_file/producible.h"

#include <algorithm>
#include <cstdint>

#include "base/dtype.h"
#include "base/string_cat.h"
#include "kernels/slot_codec.h"

namespace gdn::state_file {
namespace {

// Returns true if an output of `bytes` bytes can be one of at most `most` tokens of `features` elements, in some output
// dtype.
bool IsWholeTokens(int64_t bytes, int64_t features, int64_t most) {
  return std::ranges::any_of(std::initializer_list<DType>{DType::kF32, DType::kF16, DType::kBF16}, [&](DType dtype) {
    const int64_t token_bytes = features * static_cast<int64_t>(DTypeSize(dtype));
    return bytes % token_bytes == 0 && bytes / token_bytes <= most;
  });
}

}  // namespace

absl::Status CheckInputKind(const LayerDims& dims, const LayerEntry& entry, int32_t layer) {
  const bool takes_hidden = dims.has_layer();
  const bool takes_projected = dims.conv_width > 0;
  if (entry.kind == InputKind::kHiddenStates ? takes_hidden : entry.kind != InputKind::kProjected || takes_projected) {
    return absl::OkStatus();
  }
  return Damaged(StrCat("layer ", layer, " has the input_kind ", InputKindName(entry.kind), ", which layers of ",
                        LayerDimsToString(dims), " do not take; a bare operator's is delta_rule or none"));
}

absl::Status CheckReplyTensor(const LayerDims& dims, const LayerEntry& entry, const std::string& name,
                              const SafetensorsEntry& tensor) {
  if (tensor.dtype != "U8" || tensor.shape.size() != 1) {
    return Damaged(StrCat("tensor '", name, "' is ", tensor.dtype, " ", ShapeToString(tensor.shape),
                          "; expected U8 of one dimension"),
                   name);
  }
  // A draft's tokens are not in the count of its reply.
  const int64_t most = std::max<int64_t>(entry.reply->token_count, kMaxDraftLimit);
  const int64_t bytes = tensor.shape[0];
  const bool of_hidden = dims.has_layer() && (entry.kind == InputKind::kHiddenStates || entry.kind == InputKind::kNone);
  const bool of_values = entry.kind != InputKind::kHiddenStates;
  if (of_hidden && IsWholeTokens(bytes, dims.hidden_size, most)) return absl::OkStatus();
  if (of_values && IsWholeTokens(bytes, dims.value_features(), most)) return absl::OkStatus();
  return Damaged(StrCat("tensor '", name, "' has ", bytes, " bytes; expected those of 0 to ", most, " tokens of ",
                        of_hidden ? dims.hidden_size : dims.value_features(), " elements in F32, F16 or BF16"),
                 name);
}

absl::Status CheckLogDecays(const std::string& name, absl::Span<const float> log_g) {
  const auto* above = std::ranges::find_if(log_g, [](float g) { return g > 0.0f; });
  if (above == log_g.end()) return absl::OkStatus();
  return Damaged(StrCat("tensor '", name, "' has the log decay ", *above, " at element ", above - log_g.begin(),
                        "; expected none above 0"),
                 name);
}

}  // namespace gdn::state_file
