#include "base/layer_dims.h"

#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

absl::Status CheckRange(std::string_view field, int32_t value, int32_t low, int32_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return InvalidSpecField(field, value, StrCat("a value in [", low, ", ", high, "]"));
}

}  // namespace

absl::Status InvalidSpecField(std::string_view field, const absl::AlphaNum& value, std::string_view expected) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   StrCat(field, " is ", value, "; expected ", expected), {{"field", std::string(field)}});
}

absl::Status ValidateLayerDims(const LayerDims& dims) {
  if (auto status = CheckRange("key_heads", dims.key_heads, 1, kMaxHeads); !status.ok()) return status;
  if (auto status = CheckRange("value_heads", dims.value_heads, 1, kMaxHeads); !status.ok()) return status;
  if (dims.value_heads % dims.key_heads != 0) {
    return InvalidSpecField("value_heads", dims.value_heads, StrCat("a multiple of key_heads, ", dims.key_heads));
  }
  if (auto status = CheckRange("key_dim", dims.key_dim, 1, kMaxHeadDim); !status.ok()) return status;
  if (auto status = CheckRange("value_dim", dims.value_dim, 1, kMaxHeadDim); !status.ok()) return status;
  if (dims.conv_width == 0 && dims.hidden_size == 0) return absl::OkStatus();  // a bare operator
  if (auto status = CheckRange("conv_width", dims.conv_width, 2, kMaxConvWidth); !status.ok()) return status;
  return CheckRange("hidden_size", dims.hidden_size, 1, kMaxHiddenSize);
}

std::string LayerDimsToString(const LayerDims& dims) {
  return StrCat("H=", dims.key_heads, " HV=", dims.value_heads, " K=", dims.key_dim, " V=", dims.value_dim,
                " W=", dims.conv_width, " D=", dims.hidden_size, dims.decays_by_channel() ? " decay=per-channel" : "");
}

std::string_view InputKindName(InputKind kind) {
  constexpr std::string_view kNames[] = {"none", "hidden_states", "projected", "delta_rule"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace gdn
