#include <cmath>
#include <limits>

#include "kernels/primitives/reduce/reduce.h"

namespace gdn {

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
