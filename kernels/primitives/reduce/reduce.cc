#include "kernels/primitives/reduce/reduce.h"

#include <cmath>
#include <limits>

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

void ReduceReference(const ReduceParams& params) {
  const bool maximum = params.op == ReduceOp::kMax || params.op == ReduceOp::kAbsDiffMax;
  double result = maximum ? -std::numeric_limits<double>::infinity() : 0.0;
  for (int64_t i = 0; i < params.count; ++i) {
    double value = params.x[i];
    if (params.op != ReduceOp::kSum && params.op != ReduceOp::kMax) value -= params.y[i];
    if (params.op == ReduceOp::kAbsDiffSum || params.op == ReduceOp::kAbsDiffMax) value = std::abs(value);
    if (params.op == ReduceOp::kSquaredDiff) value *= value;
    if (!maximum) {
      result += value;
    } else if (value > result || std::isnan(value)) {  // once NaN, no comparison holds again
      result = value;
    }
  }
  params.result[0] = static_cast<float>(result);
}

}  // namespace gdn
