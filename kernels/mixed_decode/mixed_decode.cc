#include "kernels/mixed_decode/mixed_decode.h"

#include "base/error.h"
#include "base/status_macros.h"

namespace gdn {

absl::Status ValidateMixedDecode(const MixedDecodeParams& params) {
  GDN_RETURN_IF_ERROR(ValidateMixerInput(params.input));
  GDN_RETURN_IF_ERROR(ValidateDeltaRuleDecode(params.decode));
  GDN_RETURN_IF_ERROR(ValidateGatedRmsNorm(params.norm));
  const DeltaRuleParams& rule = params.decode.rule;
  const LayerDims& dims = params.input.pool.layout.dims();
  const bool follows = rule.pool.data == params.input.pool.data && rule.batch.slots == params.input.batch.slots &&
                       rule.q == params.input.q && rule.k == params.input.k && rule.g == params.input.g &&
                       rule.beta == params.input.beta && rule.v == params.input.convolved + 2 * dims.key_features() &&
                       params.norm.x == rule.output && params.norm.value_dim == dims.value_dim &&
                       params.norm.rows == params.input.batch.tokens() * dims.value_heads;
  if (follows) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kStateMismatch,
                   "MixedDecode: decode and norm read other tensors than input and decode write; expected the same",
                   {{"field", "decode"}});
}

}  // namespace gdn
