// The rows of each operator. One file an operator, OPERATOR_cases.cc: first its runner (inputs, the reference, the
// operator, what is compared), then the table of its rows: suite, test, shape, tolerance and why. AllCases() puts them
// into the order of the suites.
//
// A row's inputs come from the seed and its own name, so rows may be added and moved without changing others.
// Thread safety: free functions.
//
//   void AddCumsumCases(std::vector<ParityCase>& cases) {
//     for (const Shape& s : kShapes) cases.push_back(GpuCase("shapes", "cumsum", Name(s), kSumTolerance, Runner(s)));
//   }
#pragma once

#include <vector>

#include "tools/gdn_parity/parity_case.h"

namespace gdn::parity {

// Served operators.
void AddProjectionCases(std::vector<ParityCase>& cases);
void AddQkvzSplitCases(std::vector<ParityCase>& cases);
void AddCausalConv1dCases(std::vector<ParityCase>& cases);
void AddGatingCases(std::vector<ParityCase>& cases);
void AddQkL2NormCases(std::vector<ParityCase>& cases);
void AddGatedRmsNormCases(std::vector<ParityCase>& cases);
void AddDeltaRuleCases(std::vector<ParityCase>& cases);
void AddDeltaRuleLlamaCases(std::vector<ParityCase>& cases);
void AddDeltaRuleFlaCases(std::vector<ParityCase>& cases);
void AddDeltaRuleSlotsCases(std::vector<ParityCase>& cases);
void AddMaterializeStateCases(std::vector<ParityCase>& cases);
void AddLayerCases(std::vector<ParityCase>& cases);

// Primitives (kernels/primitives).
void AddChunkByPrimitivesCases(std::vector<ParityCase>& cases);
void AddCumsumCases(std::vector<ParityCase>& cases);
void AddDecayMaskCases(std::vector<ParityCase>& cases);
void AddDeltaRuleStagesCases(std::vector<ParityCase>& cases);
void AddElementwiseCases(std::vector<ParityCase>& cases);
void AddGemmCases(std::vector<ParityCase>& cases);
void AddL2NormCases(std::vector<ParityCase>& cases);
void AddMasksCases(std::vector<ParityCase>& cases);
void AddReduceCases(std::vector<ParityCase>& cases);
void AddSigmoidGatingRecurrentCases(std::vector<ParityCase>& cases);
void AddTransposeCases(std::vector<ParityCase>& cases);
void AddTriangularSolveCases(std::vector<ParityCase>& cases);
void AddVarlenIndexCases(std::vector<ParityCase>& cases);

}  // namespace gdn::parity
