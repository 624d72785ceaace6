// The gates and the in-place recurrent step in one launch: the classic decode of engines without a log.
//
//   g = -exp(A_log) softplus(a + dt_bias);  beta = sigmoid(b)          gating.h
//   S <- exp(g) S;  u = beta (v - S^T k);  S <- S + k u^T;  o = S^T q     delta_rule.h
// The bits are those of GatingGpu followed by DeltaRuleScanGpu; g and beta are never stored. Any number of tokens a
// sequence. Only for decays by value head; KDA's decays by key channel are refused. The logs must be empty.
// Thread safety and ownership: as delta_rule_scan.h.
//
//   SigmoidGatingRecurrentParams p{.rule = rule, .a = a, .b = b, .a_log = a_log, .dt_bias = dt_bias};
//   GDN_RETURN_IF_ERROR(SigmoidGatingRecurrentGpu(p, device_batch, stream));
#pragma once

#include "absl/status/status.h"
#include "kernels/common/delta_rule.h"
#include "kernels/gating/gating.h"
#include "kernels/gpu/stream.h"

namespace gdn {

struct SigmoidGatingRecurrentParams {
  DeltaRuleParams rule;  // its g and beta are not used
  ALogConvention convention = ALogConvention::kRaw;
  const float* a = nullptr;        // [tokens, HV]
  const float* b = nullptr;        // [tokens, HV]
  const float* a_log = nullptr;    // [HV]
  const float* dt_bias = nullptr;  // [HV]
};

absl::Status ValidateSigmoidGatingRecurrent(const SigmoidGatingRecurrentParams& params);
// Computes on host memory: GatingReference, then DeltaRuleScanReference.
void SigmoidGatingRecurrentReference(const SigmoidGatingRecurrentParams& params);
absl::Status SigmoidGatingRecurrentGpu(const SigmoidGatingRecurrentParams& params, const gpu::DeviceBatch& batch,
                                       const gpu::Stream& stream);

}  // namespace gdn
