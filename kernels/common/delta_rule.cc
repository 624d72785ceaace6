#include "kernels/common/delta_rule.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace gdn {

absl::Status ValidateDeltaRule(const DeltaRuleParams& params) {
  const LayerDims& dims = params.pool.layout.dims();
  GDN_RETURN_IF_ERROR(ValidateLayerDims(dims));
  GDN_RETURN_IF_ERROR(ValidatePackedBatch(params.batch, params.pool.slot_count));
  if (params.pool.slot_count > 0 && params.pool.data == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("pool.data is null; expected memory for ", params.pool.slot_count, " slots"));
  }
  if (params.batch.tokens() == 0) return absl::OkStatus();

  const std::pair<const char*, const float*> tensors[] = {
      {"q", params.q}, {"k", params.k},       {"v", params.v},
      {"g", params.g}, {"beta", params.beta}, {"output", params.output},
  };
  for (const auto& [name, data] : tensors) {
    if (data == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is null; expected rows for ", params.batch.tokens(), " tokens"));
    }
  }
  const struct {
    const char* name;
    int64_t stride;
    int64_t row;
  } strides[] = {
      {"q_stride", params.q_stride, dims.key_features()},
      {"k_stride", params.k_stride, dims.key_features()},
      {"v_stride", params.v_stride, dims.value_features()},
  };
  for (const auto& [name, stride, row] : strides) {
    if (stride < row) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is ", stride, " floats; expected at least a row of ", row));
    }
  }
  return absl::OkStatus();
}

}  // namespace gdn
