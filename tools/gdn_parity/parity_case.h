// One row of the parity table: an operator on one shape, and how close it must be to its float64 reference.
//
// The case list knows no backend: a case gets one, so one list compares them all. Thread safety: cases are constant
// once listed.
//
//   for (const ParityCase& c : AllCases()) { RandomTensor random(seed); auto difference = c.run(backend, random); }
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "tools/gdn_parity/difference.h"
#include "tools/gdn_parity/random_tensor.h"

namespace gdn::parity {

struct ParityCase {
  std::string suite;
  std::string test;
  std::string shape;
  double tolerance = 0.0;  // of Difference::relative_norm
  std::function<absl::StatusOr<Difference>(Backend&, RandomTensor&)> run;
};

// Relative norm errors. A permutation is exact; elementwise operators err by a few roundings; the delta rule's forms by
// what their order of summation costs.
inline constexpr double kExact = 0.0;
inline constexpr double kElementwiseTolerance = 1e-6;
inline constexpr double kProjectionTolerance = 1e-6;
inline constexpr double kScanTolerance = 5e-7;
inline constexpr double kDeferredTolerance = 1e-6;
inline constexpr double kChunkTolerance = 5e-6;
inline constexpr double kLayerTolerance = 5e-6;

// Each appends its suite.
void AddLayerOpsCases(std::vector<ParityCase>& cases);   // "layer_ops"
void AddDeltaRuleCases(std::vector<ParityCase>& cases);  // "delta_rule"
void AddLayerCases(std::vector<ParityCase>& cases);      // "layer"

std::vector<ParityCase> AllCases();

}  // namespace gdn::parity
