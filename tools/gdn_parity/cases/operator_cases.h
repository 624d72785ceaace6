// The rows of each operator. Each operator has a file OPERATOR_cases.cc: first its runner (inputs, reference, operator,
// comparison), then a table of its rows: suite, test, shape, tolerance and why. AllCases() sorts them by suite.
//
// A row's inputs depend only on the seed and its own name, so rows may be added and moved without changing others.
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

// Runs a binary operation on random tensors. The rows of reductions use it too.
CaseResult RunBinary(BinaryOp op, int64_t count, bool in_place, Backend& backend, RandomTensor& random);

}  // namespace gdn::parity
