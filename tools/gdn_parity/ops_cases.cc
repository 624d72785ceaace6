// Suite "ops": the layer's operators over the sizes and conventions that models and other implementations use.

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "tools/gdn_parity/delta_rule_rows.h"
#include "tools/gdn_parity/parity_case.h"

namespace gdn::parity {
namespace {

constexpr char kSuite[] = "ops";

using Result = absl::StatusOr<Difference>;

std::vector<float> RoundToBf16(std::vector<float> x) {
  for (float& value : x) value = BF16ToFloat(FloatToBF16(value));
  return x;
}

// What a bf16 model sees: q, k, v and the output are rounded, the reference is not.
Result RunBf16(DeltaRuleForm form, const LayerDims& dims, int32_t tokens, Backend& backend, RandomTensor& random) {
  DeltaRuleProblem problem = RandomDeltaRule(dims, {tokens}, {}, random);
  const DeltaRuleResult expected = DeltaRuleReferenceResult(problem);
  problem.q = RoundToBf16(problem.q);
  problem.k = RoundToBf16(problem.k);
  problem.v = RoundToBf16(problem.v);
  GDN_ASSIGN_OR_RETURN(DeltaRuleResult actual, RunDeltaRule(form, problem, backend));
  GDN_RETURN_IF_ERROR(DumpDeltaRule(problem, actual));  // the problem as it was computed, before the output is rounded
  Difference difference = Compare(RoundToBf16(actual.output), expected.output);
  difference.Merge(Compare(actual.states, expected.states));
  return difference;
}

struct ScanShape {
  int32_t key_heads, value_heads, key_dim, value_dim;
};

void AddScans(std::vector<ParityCase>& cases) {
  const std::vector<DeltaRuleForm> forms{DeltaRuleForm::kScan, DeltaRuleForm::kChunk, DeltaRuleForm::kStages};
  for (const ScanShape& shape :
       {ScanShape{1, 2, 64, 64}, ScanShape{1, 2, 128, 128}, ScanShape{2, 4, 32, 48}, ScanShape{2, 4, 48, 32}}) {
    const LayerDims dims{.key_heads = shape.key_heads,
                         .value_heads = shape.value_heads,
                         .key_dim = shape.key_dim,
                         .value_dim = shape.value_dim};
    const std::string heads =
        absl::StrCat("H=", dims.key_heads, " HV=", dims.value_heads, " K=", dims.key_dim, " V=", dims.value_dim);
    for (const int32_t tokens : {1, 32, 40, 64}) {
      for (const DeltaRuleForm form : forms) {
        ParityCase c{kSuite, absl::StrCat("scan_", DeltaRuleFormName(form)), absl::StrCat(heads, " T=", tokens),
                     kPipelineTolerance, [=](Backend& backend, RandomTensor& random) {
                       return CompareDeltaRule(form, RandomDeltaRule(dims, {tokens}, {}, random), backend);
                     }};
        c.gpu_only = form == DeltaRuleForm::kStages;
        cases.push_back(std::move(c));
      }
    }
    for (const DeltaRuleForm form : forms) {
      ParityCase c{kSuite, absl::StrCat("scan_bf16_", DeltaRuleFormName(form)), absl::StrCat(heads, " T=40"),
                   kBf16Tolerance,
                   [=](Backend& backend, RandomTensor& random) { return RunBf16(form, dims, 40, backend, random); }};
      c.max_tolerance = kBf16Tolerance;
      c.gpu_only = form == DeltaRuleForm::kStages;
      cases.push_back(std::move(c));
    }
  }
}

}  // namespace

void AddOpsCases(std::vector<ParityCase>& cases) { AddScans(cases); }

}  // namespace gdn::parity
