#include "kernels/convert/convert.h"

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {

absl::Status ValidateConvert(const ConvertParams& params) {
  constexpr char kOp[] = "Convert";
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "count", params.count, 0));
  if ((params.x.dtype == DType::kF32) == (params.y.dtype == DType::kF32)) {
    return InvalidField(kOp, "x", "from ", DTypeName(params.x.dtype), " to ", DTypeName(params.y.dtype),
                        "; expected F32 on one side only");
  }
  if (params.count == 0) return absl::OkStatus();
  return RequirePointers(kOp, {{"x", params.x.data}, {"y", params.y.data}});
}

absl::Status ConvertCpu(const ConvertParams& params) {
  GDN_RETURN_IF_ERROR(ValidateConvert(params));
  const auto count = static_cast<size_t>(params.count);
  if (params.y.dtype == DType::kF32) {
    ConvertToFloat(params.x.dtype, params.x.data, count, params.y.floats());
  } else {
    ConvertFromFloat(params.x.floats(), count, params.y.dtype, params.y.data);
  }
  return absl::OkStatus();
}

}  // namespace gdn
