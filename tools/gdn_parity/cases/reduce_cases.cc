// Rows of the reductions, alone and behind the element-wise difference that they sum up.

#include <functional>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/primitives/reduce/reduce.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {
namespace {

constexpr int64_t kReducedCount = 10007;  // some blocks and a tail

// In the operations' order.
constexpr const char* kNames[] = {"sum", "max", "abs_diff_sum", "abs_diff_max", "squared_diff_sum"};

CaseResult RunReduce(ReduceOp op, int64_t count, Backend& backend, RandomTensor& random) {
  return OperatorCall<ReduceParams>("reduce", {{"f", kNames[static_cast<size_t>(op)]}}, {.op = op, .count = count})
      .In(&ReduceParams::x, "x", {count}, random.Normal(count))
      .In(&ReduceParams::y, "y", {count}, random.Normal(count))
      .Out(&ReduceParams::result, "result", {1})
      .Scratch(&ReduceParams::workspace, static_cast<int64_t>(ReduceWorkspaceBytes(count) / sizeof(double)))
      .Run(backend, ReduceReference, ReduceGpu);
}

CaseResult AbsDiff(Backend& backend, RandomTensor& random) {
  return Worst({RunBinary(BinaryOp::kAbsDiff, kReducedCount, false, backend, random),
                RunReduce(ReduceOp::kAbsDiffSum, kReducedCount, backend, random),
                RunReduce(ReduceOp::kAbsDiffMax, kReducedCount, backend, random)});
}

CaseResult SquaredDiff(Backend& backend, RandomTensor& random) {
  return Worst({RunBinary(BinaryOp::kSquaredDiff, kReducedCount, false, backend, random),
                RunReduce(ReduceOp::kSquaredDiff, kReducedCount, backend, random)});
}

}  // namespace

void AddReduceCases(std::vector<ParityCase>& cases) {
  cases.push_back(GpuCase("parity", "abs_diff", "n=10007", kElementwiseTolerance, AbsDiff));
  cases.push_back(GpuCase("parity", "squared_diff", "n=10007", kElementwiseTolerance, SquaredDiff));
  cases.push_back(
      GpuCase("parity", "max_reduce", "n=10007", kExact, std::bind_front(RunReduce, ReduceOp::kMax, kReducedCount)));
  cases.push_back(GpuCase("parity", "sum_reduce", "n=10007", kSumTolerance,
                          std::bind_front(RunReduce, ReduceOp::kSum, kReducedCount)));
  // Sums are in double: a rounding or two of the result, whatever the length.
  for (size_t op = 0; op < std::size(kNames); ++op) {
    for (const int64_t count : {1, 255, 4096, 4097, 20000}) {
      cases.push_back(GpuCase("shapes", absl::StrCat("reduce_", kNames[op]), absl::StrCat("n=", count),
                              kElementwiseTolerance, std::bind_front(RunReduce, static_cast<ReduceOp>(op), count)));
    }
  }
}

}  // namespace gdn::parity
