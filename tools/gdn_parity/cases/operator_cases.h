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

#include <cstdint>
#include <vector>

#include "kernels/primitives/elementwise/elementwise.h"
#include "tools/gdn_parity/parity_case.h"

namespace gdn::parity {

using AddCases = void(std::vector<ParityCase>& cases);

// Served operators.
AddCases AddProjectionCases, AddQkvzSplitCases, AddCausalConv1dCases, AddGatingCases, AddMixerInputCases,
    AddQkL2NormCases, AddGatedRmsNormCases, AddDeltaRuleCases, AddDeltaRuleLlamaCases, AddDeltaRuleFlaCases,
    AddDeltaRuleSlotsCases, AddExtremeGatesCases, AddMaterializeStateCases, AddLayerCases;

// Primitives (kernels/primitives).
AddCases AddSigmoidGatingRecurrentCases, AddChunkByPrimitivesCases, AddCumsumCases, AddDecayMaskCases,
    AddDeltaRuleStagesCases, AddElementwiseCases, AddGemmCases, AddL2NormCases, AddMasksCases, AddReduceCases,
    AddTransposeCases, AddTriangularSolveCases, AddVarlenIndexCases;

// One binary operation on random tensors; rows of reductions sum its results up.
CaseResult RunBinary(BinaryOp op, int64_t count, bool in_place, Backend& backend, RandomTensor& random);

}  // namespace gdn::parity
