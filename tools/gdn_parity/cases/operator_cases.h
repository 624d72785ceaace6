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

// The operators with rows: those that are served, then primitives (kernels/primitives).
#define GDN_PARITY_OPERATORS(Rows)                                                                                     \
  Rows(Projection) Rows(QkvzSplit) Rows(CausalConv1d) Rows(Gating) Rows(MixerInput) Rows(QkL2Norm) Rows(GatedRmsNorm)  \
      Rows(DeltaRule) Rows(DeltaRuleLlama) Rows(DeltaRuleFla) Rows(DeltaRuleSlots) Rows(ExtremeGates)                  \
          Rows(MaterializeState) Rows(Layer) Rows(SigmoidGatingRecurrent) Rows(ChunkByPrimitives) Rows(Cumsum)         \
              Rows(DecayMask) Rows(DeltaRuleStages) Rows(Elementwise) Rows(Gemm) Rows(L2Norm) Rows(Masks) Rows(Reduce) \
                  Rows(Transpose) Rows(TriangularSolve) Rows(VarlenIndex)

#define GDN_DECLARE_ROWS(Name) void Add##Name##Cases(std::vector<ParityCase>& cases);
GDN_PARITY_OPERATORS(GDN_DECLARE_ROWS)
#undef GDN_DECLARE_ROWS

// Runs a binary operation on random tensors of `count` elements, with the output in the first one's memory if
// `in_place`, and compares with the reference. The rows of reductions use it too.
CaseResult RunBinary(BinaryOp op, int64_t count, bool in_place, Backend& backend, RandomTensor& random);

}  // namespace gdn::parity
