#include "kernels/mixer_input/mixer_input.h"

#include "base/status_macros.h"
#include "kernels/common/contract.h"
#include "kernels/delta_rule_decode/delta_rule_decode.h"

namespace gdn {

absl::Status ValidateMixerInput(const MixerInputParams& params) {
  constexpr char kOp[] = "MixerInput";
  GDN_RETURN_IF_ERROR(ValidatePackedBatch(params.batch, params.pool.slot_count));
  GDN_RETURN_IF_ERROR(ValidateLayerDims(params.pool.layout.dims()));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "conv_width", params.pool.layout.dims().conv_width, 2, kMaxConvWidth));
  GDN_RETURN_IF_ERROR(RequireFinite(kOp, "scale", params.scale));
  GDN_RETURN_IF_ERROR(RequirePositive(kOp, "beta_scale", params.beta_scale));
  if (params.batch.tokens() == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "pool.data", params.pool.data));
  if (params.qkvz != nullptr || params.ba != nullptr) {
    if (params.pool.layout.dims().decays_by_channel()) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                       "MixerInput: qkvz and ba are given with dims that decay by channel; expected mixed_qkv, b and a",
                       {{"field", "qkvz"}});
    }
    GDN_RETURN_IF_ERROR(RequirePointers(kOp, {{"qkvz", params.qkvz}, {"ba", params.ba}, {"z", params.z}}));
  } else {
    GDN_RETURN_IF_ERROR(RequirePointers(kOp, {{"mixed_qkv", params.mixed_qkv}, {"b", params.b}, {"a", params.a}}));
  }
  GDN_RETURN_IF_ERROR(RequirePointers(kOp, {{"conv_weight", params.conv_weight},
                                            {"a_log", params.a_log},
                                            {"dt_bias", params.dt_bias},
                                            {"convolved", params.convolved},
                                            {"q", params.q},
                                            {"k", params.k},
                                            {"g", params.g},
                                            {"beta", params.beta}}));
  GDN_RETURN_IF_ERROR(ValidateTokenCounts(kOp, params.batch, params.token_counts));
  if (params.records == nullptr) return absl::OkStatus();
  return ValidateDecodeLogs(kOp, params.pool, params.batch, params.log_lengths, params.base_slots);
}

}  // namespace gdn
