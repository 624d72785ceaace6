#include "kernels/primitives/reduce/reduce.h"

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {

size_t ReduceWorkspaceBytes(int64_t count) {
  return static_cast<size_t>((count + kReduceBlockElements - 1) / kReduceBlockElements) * sizeof(double);
}

absl::Status ValidateReduce(const ReduceParams& params) {
  constexpr char kOp[] = "Reduce";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "count", params.count, 0, int64_t{1} << 40));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "result", params.result));
  if (params.count == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "x", params.x));
  if (params.op == ReduceOp::kSum || params.op == ReduceOp::kMax) return absl::OkStatus();
  return RequirePointer(kOp, "y", params.y);
}

}  // namespace gdn
