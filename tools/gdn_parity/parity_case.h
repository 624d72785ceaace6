// One row of the parity table: an operator on one shape, and how close it must be to its float64 reference.
//
// The case list knows no backend: a case gets one, so one list compares them all. Thread safety: cases are constant
// once listed.
//
//   for (const ParityCase& c : AllCases()) { RandomTensor random(seed); auto difference = c.run(backend, random); }
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "tools/gdn_parity/difference.h"
#include "tools/gdn_parity/random_tensor.h"

namespace gdn::parity {

// Of Difference::max_relative, for float32 outputs.
inline constexpr double kMaxRelativeTolerance = 1e-5;

using CaseResult = absl::StatusOr<Difference>;
using CaseRunner = std::function<CaseResult(Backend&, RandomTensor&)>;

struct ParityCase {
  std::string suite;
  std::string test;
  std::string shape;
  double tolerance = 0.0;    // of Difference::relative_norm
  CaseRunner run = nullptr;  // null where out_of_scope says why
  double max_tolerance = kMaxRelativeTolerance;
  int phase = 0;          // 1 .. 8 in suite "phases", 0 elsewhere
  bool gpu_only = false;  // launches kernels itself, on GpuStreamOf(backend); skipped where there is no such stream
  bool large = false;     // a real model's size: for real devices, skipped elsewhere (a reduced case stands beside it)
  bool slow_on_executor =
      false;                // for compiled code, the CPU and real devices; the executor has smaller rows beside it
  bool by_channel = false;  // a log decay for each key channel; not every backend computes that
  std::string out_of_scope = {};  // why a case of somebody's list is named here and never run
};

// A row that launches GPU kernels itself; `tolerance` is that of both measures.
inline ParityCase GpuCase(std::string suite, std::string test, std::string shape, double tolerance, CaseRunner run,
                          int phase = 0) {
  return {.suite = std::move(suite),
          .test = std::move(test),
          .shape = std::move(shape),
          .tolerance = tolerance,
          .run = std::move(run),
          .max_tolerance = tolerance,
          .phase = phase,
          .gpu_only = true};
}

// Relative norm errors. A permutation is exact; elementwise operators err by a few roundings; the delta rule's forms by
// what their order of summation costs.
inline constexpr double kExact = 0.0;
inline constexpr double kElementwiseTolerance = 1e-6;
inline constexpr double kProjectionTolerance = 1e-6;
inline constexpr double kScanTolerance = 5e-7;
inline constexpr double kDeferredTolerance = 1e-6;
inline constexpr double kChunkTolerance = 5e-6;
inline constexpr double kLayerTolerance = 5e-6;
// Both measures, for cases that launch GPU kernels.
inline constexpr double kSumTolerance = 1e-5;        // sums and products
inline constexpr double kPipelineTolerance = 1e-5;   // several operators on end
inline constexpr double kBf16Tolerance = 1e-2;       // bf16 inputs and outputs
inline constexpr double kBf16StateTolerance = 2e-2;  // bf16 state over 256 steps

// A suite's tests as they are listed, separated by spaces; the rows of tests that are joined by '+' are interleaved.
struct SuiteOrder {
  std::string suite;
  std::string tests;
};
const std::vector<SuiteOrder>& SuiteOrders();

// The rows of cases/operator_cases.h, in that order; suites and tests without a place of their own come last.
std::vector<ParityCase> AllCases();

}  // namespace gdn::parity
