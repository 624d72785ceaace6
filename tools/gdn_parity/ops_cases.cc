// Suite "ops": the layer's operators over the sizes and conventions that models and other implementations use.

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "tools/gdn_parity/conv_rows.h"
#include "tools/gdn_parity/delta_rule_rows.h"
#include "tools/gdn_parity/operator_row.h"
#include "tools/gdn_parity/parity_case.h"

namespace gdn::parity {
namespace {

constexpr char kSuite[] = "ops";

using Result = absl::StatusOr<Difference>;

void AddConvs(std::vector<ParityCase>& cases) {
  for (const bool channel_major : {false, true}) {
    for (const int32_t width : {2, 3, 4, 9}) {
      // Shorter than the filter, as long, longer; with a carried state and without.
      for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{1}, {width - 1}, {width}, {40, 1, 0, 2}}) {
        for (const bool fresh : {true, false}) {
          const ConvProblem problem{.channels = 96,
                                    .width = width,
                                    .lengths = lengths,
                                    .calls = 2,
                                    .fresh = fresh,
                                    .channel_major = channel_major};
          ParityCase c{
              kSuite, channel_major ? "conv1d_channel_major" : "conv1d_token_major",
              absl::StrCat("C=96 W=", width, " T=", absl::StrJoin(lengths, ","), fresh ? " fresh" : " carried"),
              kSumTolerance,
              [problem](Backend& backend, RandomTensor& random) { return CompareConv(problem, backend, random); }};
          c.gpu_only = channel_major;  // the transpose is a GPU launch
          cases.push_back(std::move(c));
        }
      }
    }
  }
}

Result RunGating(ALogConvention convention, float spread, Backend& backend, RandomTensor& random) {
  constexpr int64_t kRows = 33;
  constexpr int32_t kHeads = 12;
  const bool raw = convention == ALogConvention::kRaw;
  OperatorRow row(backend, "gating", {{"convention", raw ? "raw" : "negative_exp"}});
  const std::vector<float> a = random.Normal(kRows * kHeads, spread);
  const std::vector<float> b = random.Normal(kRows * kHeads, spread);
  std::vector<float> a_log = random.Normal(kHeads);
  if (!raw) {
    for (float& rate : a_log) rate = -std::exp(rate);
  }
  const std::vector<float> dt_bias = random.Normal(kHeads);
  std::vector<float> g(a.size()), beta(a.size());
  GatingParams params{.convention = convention,
                      .value_heads = kHeads,
                      .rows = kRows,
                      .a = a.data(),
                      .b = b.data(),
                      .a_log = a_log.data(),
                      .dt_bias = dt_bias.data(),
                      .g = g.data(),
                      .beta = beta.data()};
  GatingReference(params);
  GDN_ASSIGN_OR_RETURN(params.a, row.In("a", {kRows, kHeads}, a));
  GDN_ASSIGN_OR_RETURN(params.b, row.In("b", {kRows, kHeads}, b));
  GDN_ASSIGN_OR_RETURN(params.a_log, row.In("a_log", {kHeads}, a_log));
  GDN_ASSIGN_OR_RETURN(params.dt_bias, row.In("dt_bias", {kHeads}, dt_bias));
  GDN_ASSIGN_OR_RETURN(params.g, row.Out("g", {kRows, kHeads}, g));
  GDN_ASSIGN_OR_RETURN(params.beta, row.Out("beta", {kRows, kHeads}, beta));
  GDN_RETURN_IF_ERROR(backend.Gating(params));
  return row.Finish();
}

void AddGatings(std::vector<ParityCase>& cases) {
  for (const ALogConvention convention : {ALogConvention::kRaw, ALogConvention::kNegativeExp}) {
    for (const float spread : {1.0f, 100.0f}) {  // 100: softplus past its overflow, sigmoid at its ends
      ParityCase c{
          kSuite, convention == ALogConvention::kRaw ? "gating_a_log" : "gating_ssm_a",
          absl::StrCat("rows=33 HV=12 |a|~", spread), kElementwiseTolerance,
          [=](Backend& backend, RandomTensor& random) { return RunGating(convention, spread, backend, random); }};
      c.max_tolerance = kElementwiseTolerance;
      cases.push_back(std::move(c));
    }
  }
}

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

void AddOpsCases(std::vector<ParityCase>& cases) {
  AddConvs(cases);
  AddGatings(cases);
  AddScans(cases);
}

}  // namespace gdn::parity
