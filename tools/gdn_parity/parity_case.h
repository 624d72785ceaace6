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

// Of Difference::max_relative, for float32 outputs.
inline constexpr double kMaxRelativeTolerance = 1e-5;

struct ParityCase {
  std::string suite;
  std::string test;
  std::string shape;
  double tolerance = 0.0;  // of Difference::relative_norm
  std::function<absl::StatusOr<Difference>(Backend&, RandomTensor&)> run;
  double max_tolerance = kMaxRelativeTolerance;
  int phase = 0;          // 1 .. 8 in suite "phases", 0 elsewhere
  bool gpu_only = false;  // launches kernels itself, on GpuStreamOf(backend); skipped where there is no such stream
  bool large = false;     // a real model's size: for real devices, skipped elsewhere (a reduced case stands beside it)
  std::string out_of_scope = {};  // why a case of somebody's list is named here and never run
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
// Both measures, for cases that launch GPU kernels.
inline constexpr double kSumTolerance = 1e-5;        // sums and products
inline constexpr double kPipelineTolerance = 1e-5;   // several operators on end
inline constexpr double kBf16Tolerance = 1e-2;       // bf16 inputs and outputs
inline constexpr double kBf16StateTolerance = 2e-2;  // bf16 state over 256 steps

// Each appends its suite.
void AddLayerOpsCases(std::vector<ParityCase>& cases);     // "layer_ops"
void AddDeltaRuleCases(std::vector<ParityCase>& cases);    // "delta_rule"
void AddLayerCases(std::vector<ParityCase>& cases);        // "layer"
void AddPhasesCases(std::vector<ParityCase>& cases);       // "phases"
void AddParityCases(std::vector<ParityCase>& cases);       // "parity", primitives and index helpers
void AddParityLayerCases(std::vector<ParityCase>& cases);  // "parity", the layer's operators
void AddStageCases(std::vector<ParityCase>& cases);        // "parity", the stages of the chunked path
void AddOpsCases(std::vector<ParityCase>& cases);          // "ops"
void AddCacheCases(std::vector<ParityCase>& cases);        // "cache"
void AddLlamaCases(std::vector<ParityCase>& cases);        // "llama"
void AddFlaCases(std::vector<ParityCase>& cases);          // "fla"

std::vector<ParityCase> AllCases();

}  // namespace gdn::parity
