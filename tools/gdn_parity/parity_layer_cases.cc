// Suite "parity", rows 16 to 22: the layer's operators, on any backend.

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/primitives/sigmoid_gating_recurrent/sigmoid_gating_recurrent.h"
#include "tools/gdn_parity/backend_data.h"
#include "tools/gdn_parity/delta_rule_rows.h"
#include "tools/gdn_parity/operator_row.h"
#include "tools/gdn_parity/parity_case.h"

namespace gdn::parity {
namespace {

constexpr char kSuite[] = "parity";

using Result = absl::StatusOr<Difference>;

DeltaRuleProblem RecurrentProblem(RandomTensor& random) {
  const LayerDims dims{.key_heads = 2, .value_heads = 4, .key_dim = 64, .value_dim = 40};
  return RandomDeltaRule(dims, {20, 1, 7}, {}, random);
}

Result RecurrentOutput(Backend& backend, RandomTensor& random) {
  const DeltaRuleProblem problem = RecurrentProblem(random);
  const DeltaRuleResult expected = DeltaRuleReferenceResult(problem);
  GDN_ASSIGN_OR_RETURN(const DeltaRuleResult actual, RunDeltaRule(DeltaRuleForm::kScan, problem, backend));
  GDN_RETURN_IF_ERROR(DumpDeltaRule(problem, actual));
  return Compare(actual.output, expected.output);
}

Result RecurrentState(Backend& backend, RandomTensor& random) {
  const DeltaRuleProblem problem = RecurrentProblem(random);
  const DeltaRuleResult expected = DeltaRuleReferenceResult(problem);
  GDN_ASSIGN_OR_RETURN(const DeltaRuleResult actual, RunDeltaRule(DeltaRuleForm::kScan, problem, backend));
  GDN_RETURN_IF_ERROR(DumpDeltaRule(problem, actual));
  return Compare(actual.states, expected.states);
}

struct Gates {
  std::vector<float> a, b, a_log, dt_bias;
};

Gates RandomGates(int64_t rows, int64_t heads, RandomTensor& random) {
  return {random.Normal(rows * heads, 2.0f), random.Normal(rows * heads, 2.0f), random.Normal(heads),
          random.Normal(heads)};
}

// From raw q, k, a and b to the step's output and state: l2norm, gates and the recurrence, on the backend throughout.
Result SigmoidGatingRecurrent(Backend& backend, RandomTensor& random) {
  const LayerDims dims{.key_heads = 2, .value_heads = 4, .key_dim = 64, .value_dim = 40};
  constexpr int32_t kSequences = 5;
  const int64_t heads = dims.value_heads;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dims.key_dim));
  OperatorRow row(backend, "sigmoid_gating_recurrent", {{"scale", absl::StrFormat("%.9g", scale)}});
  const OwnedBatch batch(std::vector<int32_t>(kSequences, 1));
  const std::vector<float> q = random.Normal(kSequences * dims.key_features());
  const std::vector<float> k = random.Normal(kSequences * dims.key_features());
  const std::vector<float> v = random.Normal(kSequences * dims.value_features());
  const std::vector<float> initial = random.Normal(kSequences * dims.state_elements(), 0.5f);
  const Gates gates = RandomGates(kSequences, heads, random);
  GDN_ASSIGN_OR_RETURN(StatePair state, StatePair::Make(backend, dims, kSequences, /*max_draft=*/1));
  for (int32_t i = 0; i < kSequences; ++i) {
    SlotImage image;
    const auto begin = initial.begin() + i * dims.state_elements();
    image.base.assign(begin, begin + dims.state_elements());
    GDN_RETURN_IF_ERROR(state.Write(i, 0, image));
  }

  std::vector<float> q_norm(q.size()), k_norm(k.size()), g(kSequences * heads), beta(g.size()), output(v.size());
  QkL2NormParams norm{.key_heads = dims.key_heads,
                      .key_dim = dims.key_dim,
                      .rows = kSequences,
                      .scale = scale,
                      .q = q.data(),
                      .k = k.data(),
                      .in_stride = dims.key_features(),
                      .q_out = q_norm.data(),
                      .k_out = k_norm.data()};
  GatingParams gating{.value_heads = dims.value_heads,
                      .rows = kSequences,
                      .a = gates.a.data(),
                      .b = gates.b.data(),
                      .a_log = gates.a_log.data(),
                      .dt_bias = gates.dt_bias.data(),
                      .g = g.data(),
                      .beta = beta.data()};
  DeltaRuleParams rule{.pool = state.host(),
                       .batch = batch.view(),
                       .q = q_norm.data(),
                       .k = k_norm.data(),
                       .v = v.data(),
                       .g = g.data(),
                       .beta = beta.data(),
                       .q_stride = dims.key_features(),
                       .k_stride = dims.key_features(),
                       .v_stride = dims.value_features(),
                       .output = output.data()};
  QkL2NormReference(norm);
  GatingReference(gating);
  DeltaRuleScanReference(rule);

  const std::vector<int64_t> keys{kSequences, dims.key_heads, dims.key_dim};
  const std::vector<int64_t> values{kSequences, heads, dims.value_dim};
  const std::vector<int64_t> states{kSequences, heads, dims.key_dim, dims.value_dim};
  GDN_ASSIGN_OR_RETURN(norm.q, row.In("q", keys, q));
  GDN_ASSIGN_OR_RETURN(norm.k, row.In("k", keys, k));
  GDN_ASSIGN_OR_RETURN(norm.q_out, row.data().Poisoned(static_cast<int64_t>(q.size())));
  GDN_ASSIGN_OR_RETURN(norm.k_out, row.data().Poisoned(static_cast<int64_t>(k.size())));
  GDN_ASSIGN_OR_RETURN(gating.a, row.In("a", {kSequences, heads}, gates.a));
  GDN_ASSIGN_OR_RETURN(gating.b, row.In("b", {kSequences, heads}, gates.b));
  GDN_ASSIGN_OR_RETURN(gating.a_log, row.In("a_log", {heads}, gates.a_log));
  GDN_ASSIGN_OR_RETURN(gating.dt_bias, row.In("dt_bias", {heads}, gates.dt_bias));
  GDN_ASSIGN_OR_RETURN(gating.g, row.data().Poisoned(kSequences * heads));
  GDN_ASSIGN_OR_RETURN(gating.beta, row.data().Poisoned(kSequences * heads));
  rule.pool = state.device();
  rule.q = norm.q_out;
  rule.k = norm.k_out;
  rule.g = gating.g;
  rule.beta = gating.beta;
  GDN_ASSIGN_OR_RETURN(rule.v, row.In("v", values, v));
  GDN_ASSIGN_OR_RETURN(rule.output, row.Out("output", values, output));
  row.Given("initial_state", states, initial);
  GDN_RETURN_IF_ERROR(backend.QkL2Norm(norm));
  if (const absl::StatusOr<gpu::Stream> stream = GpuStreamOf(backend); stream.ok()) {
    // Gates and step are one launch there.
    GDN_ASSIGN_OR_RETURN(const void* cu_seqlens,
                         row.data().UploadBytes(batch.cu_seqlens.data(), batch.cu_seqlens.size() * sizeof(int32_t)));
    GDN_ASSIGN_OR_RETURN(const void* slots,
                         row.data().UploadBytes(batch.slots.data(), batch.slots.size() * sizeof(int32_t)));
    const gpu::DeviceBatch device{.sequences = kSequences,
                                  .tokens = kSequences,
                                  .max_length = 1,
                                  .cu_seqlens = static_cast<const int32_t*>(cu_seqlens),
                                  .slots = static_cast<const int32_t*>(slots)};
    rule.g = nullptr;
    rule.beta = nullptr;
    GDN_RETURN_IF_ERROR(SigmoidGatingRecurrentGpu(
        {.rule = rule, .a = gating.a, .b = gating.b, .a_log = gating.a_log, .dt_bias = gating.dt_bias}, device,
        *stream));
  } else {
    GDN_RETURN_IF_ERROR(backend.Gating(gating));
    GDN_RETURN_IF_ERROR(backend.DeltaRuleScan(rule));
  }

  std::vector<float> actual_states, expected_states;
  for (int32_t i = 0; i < kSequences; ++i) {
    GDN_ASSIGN_OR_RETURN(const SlotImage actual, ReadSlot(backend, state.device(), i, /*log_length=*/0, 0));
    GDN_ASSIGN_OR_RETURN(const SlotImage expected, ReadHostSlot(state.host(), i, /*log_length=*/0, 0));
    actual_states.insert(actual_states.end(), actual.base.begin(), actual.base.end());
    expected_states.insert(expected_states.end(), expected.base.begin(), expected.base.end());
  }
  row.Result("final_state", states, actual_states, expected_states);
  return row.Finish();
}

void Add(const char* test, const char* shape, double tolerance, Result (*run)(Backend&, RandomTensor&),
         std::vector<ParityCase>& cases) {
  ParityCase c{kSuite, test, shape, tolerance, run};
  c.max_tolerance = tolerance;
  cases.push_back(std::move(c));
}

}  // namespace

void AddParityLayerCases(std::vector<ParityCase>& cases) {
  const char recurrent[] = "H=2 HV=4 K=64 V=40 T=20,1,7";
  Add("recurrent_output", recurrent, kSumTolerance, RecurrentOutput, cases);
  Add("recurrent_state", recurrent, kSumTolerance, RecurrentState, cases);
  Add("sigmoid_gating_recurrent", "H=2 HV=4 K=64 V=40 T=1 x5", kPipelineTolerance, SigmoidGatingRecurrent, cases);
}

}  // namespace gdn::parity
