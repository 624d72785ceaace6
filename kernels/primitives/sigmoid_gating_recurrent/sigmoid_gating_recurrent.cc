#include "kernels/primitives/sigmoid_gating_recurrent/sigmoid_gating_recurrent.h"

#include <vector>

#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"
#include "kernels/delta_rule_scan/delta_rule_scan.h"

namespace gdn {

absl::Status ValidateSigmoidGatingRecurrent(const SigmoidGatingRecurrentParams& params) {
  if (params.rule.pool.layout.dims().decays_by_channel()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     "SigmoidGatingRecurrent: the pool's layers decay by key channel; expected a decay a value head. "
                     "Run Gating and DeltaRuleScan, which take both",
                     {{"field", "decay"}});
  }
  // The rule's own check wants gates; these stand in for the ones the kernel computes.
  DeltaRuleParams rule = params.rule;
  rule.g = params.a;
  rule.beta = params.b;
  GDN_RETURN_IF_ERROR(
      RequirePointers("SigmoidGatingRecurrent",
                      {{"a", params.a}, {"b", params.b}, {"a_log", params.a_log}, {"dt_bias", params.dt_bias}}));
  return ValidateDeltaRule(rule);
}

void SigmoidGatingRecurrentReference(const SigmoidGatingRecurrentParams& params) {
  const int32_t heads = params.rule.pool.layout.dims().value_heads;
  const int64_t rows = params.rule.batch.tokens();
  std::vector<float> g(static_cast<size_t>(rows * heads));
  std::vector<float> beta(g.size());
  GatingReference({.convention = params.convention,
                   .value_heads = heads,
                   .rows = rows,
                   .a = params.a,
                   .b = params.b,
                   .a_log = params.a_log,
                   .dt_bias = params.dt_bias,
                   .g = g.data(),
                   .beta = beta.data()});
  DeltaRuleParams rule = params.rule;
  rule.g = g.data();
  rule.beta = beta.data();
  DeltaRuleScanReference(rule);
}

}  // namespace gdn
