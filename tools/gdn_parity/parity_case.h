// One row of the parity table: an operator on one shape, and its tolerances relative to its float64 reference.
//
// Cases do not depend on a backend: run() gets one, so one list tests all backends. Thread safety: cases are constant
// once listed.
//
//   for (const ParityCase& c : AllCases()) { RandomTensor random(seed); auto difference = c.run(backend, random); }
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "tools/gdn_parity/difference.h"
#include "tools/gdn_parity/random_tensor.h"

namespace gdn::parity {

// Largest Difference::max_relative with which a case of float32 outputs passes.
inline constexpr double kMaxRelativeTolerance = 1e-5;

using CaseResult = absl::StatusOr<Difference>;
using CaseRunner = std::function<CaseResult(Backend&, RandomTensor&)>;

// Limits of Difference::relative_norm and max_relative.
struct Limits {
  double norm = 0.0, max = 0.0;
};

struct ParityCase {
  std::string suite;
  std::string test;
  std::string shape;
  double tolerance = 0.0;    // largest Difference::relative_norm with which the case passes
  CaseRunner run = nullptr;  // null if the case is out_of_scope
  double max_tolerance = kMaxRelativeTolerance;
  bool integer_weights = false;  // has weights that kInt8 multiplies otherwise than kExact
  // Limits on a backend whose math is kInt8 or kHalf; 0: as in exact products.
  Limits in_int8 = {}, in_half = {};
  int phase = 0;          // 1 .. 8 in suite "phases", 0 elsewhere
  bool gpu_only = false;  // launches kernels itself, on GpuStreamOf(backend); skipped if there is no such stream
  bool large = false;     // size of a real model; runs only on real devices, and a reduced case runs elsewhere
  bool slow_on_executor = false;  // runs on the CPU and on real devices; the host executor has smaller rows instead
  bool by_channel = false;        // has a log decay for each key channel
  std::string out_of_scope = {};  // reason why a case of another project's list is named here but never run
};

// Makes a row that launches GPU kernels itself. `tolerance` limits both relative_norm and max_relative.
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

// Tolerances of relative_norm. A permutation is exact, an elementwise operator has a few rounding errors, and the forms
// of the delta rule differ in their orders of summation.
inline constexpr double kExact = 0.0;
inline constexpr double kElementwiseTolerance = 1e-6;
inline constexpr double kProjectionTolerance = 1e-6;
inline constexpr double kScanTolerance = 5e-7;
inline constexpr double kDeferredTolerance = 1e-6;
inline constexpr double kChunkTolerance = 5e-6;
inline constexpr double kLayerTolerance = 5e-6;
// With int8 products the output projection rounds inputs that differ from the reference's in their last bits. One that
// lies between two integers may become either, a 127th of its block's largest apart. By the size of those bits one of
// 100,000 does. In units of the deviations of inputs and weights, it moves an output by at most 4 x 3 / 127, while the
// largest of a case's outputs, sums of `features` products, is 4.5 times the root of `features`.
inline constexpr double kInt8LayerTolerance = 5e-4;
inline double Int8LayerMaxTolerance(int64_t features) {
  return 4.0 * 3.0 / 127.0 / (4.5 * std::sqrt(static_cast<double>(features)));
}
// With products of fp16 numbers, one of 200 such inputs moves by 2^-11 of itself. One product of it may be half of the
// largest output.
inline constexpr double kHalfLayerTolerance = 3e-4;
// Tolerances of both measures, for cases that launch GPU kernels.
inline constexpr double kSumTolerance = 1e-5;        // sums and products
inline constexpr double kPipelineTolerance = 1e-5;   // several operators in sequence
inline constexpr double kBf16Tolerance = 1e-2;       // bf16 inputs and outputs
inline constexpr double kBf16StateTolerance = 2e-2;  // bf16 state over 256 steps

// The order of a suite's tests, separated by spaces. The rows of tests that are joined by '+' are interleaved.
struct SuiteOrder {
  std::string suite;
  std::string tests;
};
const std::vector<SuiteOrder>& SuiteOrders();

// Returns the rows of cases/operator_cases.h in the order of SuiteOrders(). Suites and tests that are not in it come
// last.
std::vector<ParityCase> AllCases();

}  // namespace gdn::parity
