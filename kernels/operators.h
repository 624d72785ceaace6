// The list of the operators that every backend has: name, params, check of the params. Backend's functions, the
// backends' overrides of them and test doubles are declared from it.
//
// An operator X of the list has a folder with these functions (CONTRIBUTING.md, "An operator with a GPU kernel"):
//   absl::Status XCpu(const XParams& params, ThreadPool& pool)
//   absl::Status XGpu(const XParams& params, [const gpu::DeviceBatch& batch,] [float* workspace,] const gpu::Stream&)
// Backends call the check before anything else, so neither function checks again: other callers pass valid params.
//
//   #define GDN_COUNT(Name, Params, Check) ++count;
//   GDN_OPERATORS(GDN_COUNT)
//   #undef GDN_COUNT
#pragma once

#include "kernels/causal_conv1d/causal_conv1d.h"
#include "kernels/delta_rule_chunk/delta_rule_chunk.h"
#include "kernels/delta_rule_decode/delta_rule_decode.h"
#include "kernels/delta_rule_scan/delta_rule_scan.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/gating/gating.h"
#include "kernels/projection/projection.h"
#include "kernels/qk_l2norm/qk_l2norm.h"
#include "kernels/qkvz_split/qkvz_split.h"

#define GDN_OPERATORS(X)                                                \
  X(Projection, ProjectionParams, ValidateProjection)                   \
  X(QkvzSplit, QkvzSplitParams, ValidateQkvzSplit)                      \
  X(CausalConv1d, CausalConv1dParams, ValidateCausalConv1d)             \
  X(Gating, GatingParams, ValidateGating)                               \
  X(QkL2Norm, QkL2NormParams, ValidateQkL2Norm)                         \
  X(DeltaRuleChunk, DeltaRuleParams, ValidateDeltaRule)                 \
  X(DeltaRuleScan, DeltaRuleParams, ValidateDeltaRule)                  \
  X(DeltaRuleDecode, DeltaRuleDecodeParams, ValidateDeltaRuleDecode)    \
  X(MaterializeState, MaterializeStateParams, ValidateMaterializeState) \
  X(GatedRmsNorm, GatedRmsNormParams, ValidateGatedRmsNorm)
