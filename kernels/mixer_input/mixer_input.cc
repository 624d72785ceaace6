#include "kernels/mixer_input/mixer_input.h"

#include <cmath>

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

constexpr char kOp[] = "MixerInput";

absl::Status ValidateInputs(const MixerInputParams& params) {
  const auto require = [](const char* name, const float* pointer) { return RequirePointer(kOp, name, pointer); };
  if (params.qkvz != nullptr || params.ba != nullptr) {
    GDN_RETURN_IF_ERROR(require("qkvz", params.qkvz));
    GDN_RETURN_IF_ERROR(require("ba", params.ba));
    return require("z", params.z);
  }
  GDN_RETURN_IF_ERROR(require("mixed_qkv", params.mixed_qkv));
  GDN_RETURN_IF_ERROR(require("b", params.b));
  return require("a", params.a);
}

}  // namespace

absl::Status ValidateMixerInput(const MixerInputParams& params) {
  GDN_RETURN_IF_ERROR(ValidatePackedBatch(params.batch, params.pool.slot_count));
  GDN_RETURN_IF_ERROR(ValidateLayerDims(params.pool.layout.dims()));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "conv_width", params.pool.layout.dims().conv_width, 2, kMaxConvWidth));
  if (!std::isfinite(params.scale)) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                     absl::StrCat(kOp, ": scale is ", params.scale, "; expected a finite number"),
                     {{"field", "scale"}});
  }
  if (params.batch.tokens() == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "pool.data", params.pool.data));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "token_counts", params.token_counts));
  GDN_RETURN_IF_ERROR(ValidateInputs(params));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "conv_weight", params.conv_weight));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "a_log", params.a_log));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "dt_bias", params.dt_bias));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "convolved", params.convolved));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "q", params.q));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "k", params.k));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "g", params.g));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "beta", params.beta));
  for (int32_t i = 0; i < params.batch.sequences; ++i) {
    if (params.batch.slots[i] < 0) continue;
    GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, absl::StrCat("token_counts[", i, "]"), params.token_counts[i], 0));
  }
  return absl::OkStatus();
}

}  // namespace gdn
