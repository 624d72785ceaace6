#include "kernels/common/delta_rule.h"

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {

absl::Status ValidateDeltaRule(const DeltaRuleParams& params) {
  constexpr char kOp[] = "DeltaRule";
  const LayerDims& dims = params.pool.layout.dims();
  GDN_RETURN_IF_ERROR(ValidateLayerDims(dims));
  GDN_RETURN_IF_ERROR(ValidatePackedBatch(params.batch, params.pool.slot_count));
  if (params.pool.slot_count > 0) GDN_RETURN_IF_ERROR(RequirePointer(kOp, "pool.data", params.pool.data));
  if (params.batch.tokens() == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointers(kOp, {{"q", params.q},
                                            {"k", params.k},
                                            {"v", params.v},
                                            {"g", params.g},
                                            {"beta", params.beta},
                                            {"output", params.output}}));
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "q_stride", params.q_stride, dims.key_features()));
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "k_stride", params.k_stride, dims.key_features()));
  return RequireAtLeast(kOp, "v_stride", params.v_stride, dims.value_features());
}

}  // namespace gdn
