// Rows of the reductions, alone and behind the element-wise difference that they sum up.

#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/primitives/reduce/reduce.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {
namespace {

constexpr int64_t kCount = 10007;  // some blocks and a tail

struct NamedReduce {
  const char* name;
  ReduceOp op;
};

constexpr NamedReduce kSum{"sum", ReduceOp::kSum};
constexpr NamedReduce kMax{"max", ReduceOp::kMax};
constexpr NamedReduce kAbsDiffSum{"abs_diff_sum", ReduceOp::kAbsDiffSum};
constexpr NamedReduce kAbsDiffMax{"abs_diff_max", ReduceOp::kAbsDiffMax};
constexpr NamedReduce kSquaredDiffSum{"squared_diff_sum", ReduceOp::kSquaredDiff};

CaseResult RunReduce(const NamedReduce& reduce, int64_t count, Backend& backend, RandomTensor& random) {
  return OperatorCall<ReduceParams>("reduce", {{"f", reduce.name}}, {.op = reduce.op, .count = count})
      .In(&ReduceParams::x, "x", {count}, random.Normal(count))
      .In(&ReduceParams::y, "y", {count}, random.Normal(count))
      .Out(&ReduceParams::result, "result", {1})
      .Scratch(&ReduceParams::workspace, static_cast<int64_t>(ReduceWorkspaceBytes(count) / sizeof(double)))
      .Run(backend, ReduceReference, ReduceGpu);
}

CaseResult AbsDiff(Backend& backend, RandomTensor& random) {
  return Worst({RunBinary(BinaryOp::kAbsDiff, kCount, false, backend, random),
                RunReduce(kAbsDiffSum, kCount, backend, random), RunReduce(kAbsDiffMax, kCount, backend, random)});
}

CaseResult SquaredDiff(Backend& backend, RandomTensor& random) {
  return Worst({RunBinary(BinaryOp::kSquaredDiff, kCount, false, backend, random),
                RunReduce(kSquaredDiffSum, kCount, backend, random)});
}

}  // namespace

void AddReduceCases(std::vector<ParityCase>& cases) {
  cases.push_back(GpuCase("parity", "abs_diff", "n=10007", kElementwiseTolerance, AbsDiff));
  cases.push_back(GpuCase("parity", "squared_diff", "n=10007", kElementwiseTolerance, SquaredDiff));
  cases.push_back(GpuCase("parity", "max_reduce", "n=10007", kExact, std::bind_front(RunReduce, kMax, kCount)));
  cases.push_back(GpuCase("parity", "sum_reduce", "n=10007", kSumTolerance, std::bind_front(RunReduce, kSum, kCount)));
  // Sums are in double: a rounding or two of the result, whatever the length.
  for (const NamedReduce& reduce : {kSum, kMax, kAbsDiffSum, kAbsDiffMax, kSquaredDiffSum}) {
    for (const int64_t count : {1, 255, 4096, 4097, 20000}) {
      cases.push_back(GpuCase("shapes", absl::StrCat("reduce_", reduce.name), absl::StrCat("n=", count),
                              kElementwiseTolerance, std::bind_front(RunReduce, reduce, count)));
    }
  }
}

}  // namespace gdn::parity
