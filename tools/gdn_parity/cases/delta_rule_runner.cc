#include "tools/gdn_parity/cases/delta_rule_runner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/gdn_parity/cases/delta_rule_stages_cases.h"
#include "tools/gdn_parity/dump.h"

namespace gdn::parity {
namespace {

constexpr int32_t kMaxDraft = 24;
constexpr int32_t kDraftTokens = 8;
constexpr int32_t kStageChunk = 64;

// On the host; pool, batch and output are the caller's.
DeltaRuleParams ParamsOf(const DeltaRuleProblem& problem) {
  return {.pool = {},
          .batch = {},
          .q = problem.q.data(),
          .k = problem.k.data(),
          .v = problem.v.data(),
          .g = problem.g.data(),
          .beta = problem.beta.data(),
          .q_stride = problem.dims.key_features(),
          .k_stride = problem.dims.key_features(),
          .v_stride = problem.dims.value_features(),
          .max_beta = problem.max_beta};
}

// The problem's tokens `which`, in that order, as one sequence.
DeltaRuleProblem Take(const DeltaRuleProblem& problem, const std::vector<int64_t>& which) {
  const auto take = [&which](const std::vector<float>& x, int64_t row) {
    std::vector<float> rows;
    for (const int64_t i : which) rows.insert(rows.end(), x.begin() + i * row, x.begin() + (i + 1) * row);
    return rows;
  };
  const LayerDims& dims = problem.dims;
  return {.dims = dims,
          .lengths = {static_cast<int32_t>(which.size())},
          .max_beta = problem.max_beta,
          .q = take(problem.q, dims.key_features()),
          .k = take(problem.k, dims.key_features()),
          .v = take(problem.v, dims.value_features()),
          .g = take(problem.g, dims.decay_features()),
          .beta = take(problem.beta, dims.value_heads)};
}

}  // namespace

std::string DimsName(const LayerDims& dims) {
  return absl::StrCat("H=", dims.key_heads, " HV=", dims.value_heads, " K=", dims.key_dim, " V=", dims.value_dim,
                      dims.decays_by_channel() ? " by channel" : "");
}

int64_t DeltaRuleProblem::tokens() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }

DeltaRuleProblem RandomDeltaRule(const LayerDims& dims, const std::vector<int32_t>& lengths,
                                 const DeltaRuleInputs& inputs, RandomTensor& random) {
  DeltaRuleProblem problem{.dims = dims, .lengths = lengths};
  const int64_t tokens = problem.tokens();
  problem.q = random.Normal(tokens * dims.key_features());
  problem.k = random.Normal(tokens * dims.key_features());
  if (inputs.key_correlation > 0.0f) {
    const std::vector<float> common = random.Normal(dims.key_dim);
    for (size_t i = 0; i < problem.k.size(); ++i) {
      problem.k[i] =
          inputs.key_correlation * common[i % common.size()] + (1.0f - inputs.key_correlation) * problem.k[i];
    }
  }
  SetLengths(problem.q, dims.key_dim, inputs.scale != 0.0f ? inputs.scale : 1.0f / std::sqrt(float(dims.key_dim)));
  SetLengths(problem.k, dims.key_dim, 1.0f);
  problem.v = random.Normal(tokens * dims.value_features());
  problem.g = random.Uniform(tokens * dims.decay_features(), inputs.strongest, 0.0f);
  problem.beta = random.Uniform(tokens * dims.value_heads, 0.0f, 1.0f);
  problem.initial.resize(problem.sequences() * dims.state_elements());
  if (inputs.state_deviation > 0.0f) {
    problem.initial = random.Normal(static_cast<int64_t>(problem.initial.size()), inputs.state_deviation);
  }
  return problem;
}

absl::StatusOr<DeltaRuleTensors> Upload(const DeltaRuleProblem& problem, BackendData& data) {
  DeltaRuleTensors tensors{.rule = ParamsOf(problem)};
  GDN_ASSIGN_OR_RETURN(tensors.rule.q, data.Upload(problem.q));
  GDN_ASSIGN_OR_RETURN(tensors.rule.k, data.Upload(problem.k));
  GDN_ASSIGN_OR_RETURN(tensors.rule.v, data.Upload(problem.v));
  GDN_ASSIGN_OR_RETURN(tensors.rule.g, data.Upload(problem.g));
  GDN_ASSIGN_OR_RETURN(tensors.rule.beta, data.Upload(problem.beta));
  GDN_ASSIGN_OR_RETURN(tensors.rule.output, data.Poisoned(static_cast<int64_t>(problem.v.size())));
  GDN_ASSIGN_OR_RETURN(tensors.state, data.Upload(problem.initial));
  return tensors;
}

DeltaRuleResult DeltaRuleReferenceResult(const DeltaRuleProblem& problem) {
  const LayerDims& dims = problem.dims;
  const OwnedBatch batch(problem.lengths);
  const StateLayout layout = StateLayout::Make(dims, kMaxDraft).value();
  std::vector<float> slots(problem.sequences() * layout.slot_floats());
  const StatePoolView pool{layout, slots.data(), static_cast<int32_t>(problem.sequences())};
  for (int32_t i = 0; i < pool.slot_count; ++i) {
    std::copy_n(problem.initial.begin() + i * dims.state_elements(), dims.state_elements(),
                pool.slot(i) + layout.base_offset());
  }
  DeltaRuleResult result{.output = std::vector<float>(problem.v.size())};
  DeltaRuleParams rule = ParamsOf(problem);
  rule.pool = pool;
  rule.batch = batch.view();
  rule.output = result.output.data();
  DeltaRuleScanReference(rule);
  for (int32_t i = 0; i < pool.slot_count; ++i) {
    const float* base = pool.slot(i) + layout.base_offset();
    result.states.insert(result.states.end(), base, base + dims.state_elements());
  }
  return result;
}

DeltaRuleProblem Part(const DeltaRuleProblem& whole, int64_t begin, int64_t end, const std::vector<float>& initial) {
  std::vector<int64_t> which(end - begin);
  std::iota(which.begin(), which.end(), begin);
  DeltaRuleProblem part = Take(whole, which);
  part.initial = initial;
  return part;
}

absl::StatusOr<DeltaRuleSlots> DeltaRuleSlots::Make(Backend& backend, const LayerDims& dims,
                                                    const std::vector<float>& states) {
  DeltaRuleSlots slots(backend);
  const int32_t count = static_cast<int32_t>(static_cast<int64_t>(states.size()) / dims.state_elements());
  GDN_ASSIGN_OR_RETURN(slots.state_, StatePair::Make(backend, dims, count, kMaxDraft));
  GDN_RETURN_IF_ERROR(slots.state_.WriteBases(states));
  slots.log_lengths_.resize(count);
  return slots;
}

absl::StatusOr<std::vector<float>> DeltaRuleSlots::Advance(DeltaRuleForm form, const DeltaRuleProblem& problem,
                                                           bool draft, const int32_t* base_slots) {
  const OwnedBatch whole(problem.lengths);
  const int64_t row = problem.dims.value_features();
  std::vector<float> output(whole.tokens() * row);
  const int32_t longest = *std::max_element(problem.lengths.begin(), problem.lengths.end());
  const int32_t most = form == DeltaRuleForm::kDecode ? 1 : form == DeltaRuleForm::kDraft ? kDraftTokens : longest;
  const int32_t step = std::max(1, draft || base_slots != nullptr ? longest : most);
  for (int32_t begin = 0; begin == 0 || begin < longest; begin += step) {
    BackendData data(*backend_);
    std::vector<int32_t> lengths(problem.lengths.size());
    std::vector<int64_t> which;
    for (size_t i = 0; i < lengths.size(); ++i) {
      lengths[i] = std::clamp(problem.lengths[i] - begin, 0, step);
      for (int32_t t = 0; t < lengths[i]; ++t) which.push_back(whole.cu_seqlens[i] + begin + t);
    }
    const OwnedBatch batch(lengths);
    const DeltaRuleProblem part = Take(problem, which);
    GDN_ASSIGN_OR_RETURN(DeltaRuleTensors tensors, Upload(part, data));
    DeltaRuleParams& rule = tensors.rule;
    rule.pool = pool();
    rule.batch = batch.view();
    if (form == DeltaRuleForm::kScan) {
      GDN_RETURN_IF_ERROR(backend_->DeltaRuleScan(rule));
    } else if (form == DeltaRuleForm::kChunk) {
      GDN_RETURN_IF_ERROR(backend_->DeltaRuleChunk(rule));
    } else {
      GDN_RETURN_IF_ERROR(backend_->DeltaRuleDecode(
          {.rule = rule, .log_lengths = log_lengths_.data(), .base_slots = base_slots, .draft = draft}));
    }
    GDN_ASSIGN_OR_RETURN(const std::vector<float> rows,
                         data.Download(rule.output, static_cast<int64_t>(part.v.size())));
    for (size_t i = 0; i < which.size(); ++i) {
      std::copy_n(rows.begin() + static_cast<int64_t>(i) * row, row, output.begin() + which[i] * row);
    }
  }
  return output;
}

absl::StatusOr<std::vector<float>> DeltaRuleSlots::States(int32_t count, const int32_t* base_slots) {
  GDN_RETURN_IF_ERROR(state_.FoldDevice({log_lengths_.begin(), log_lengths_.begin() + count}, base_slots));
  std::fill_n(log_lengths_.begin(), count, 0);
  GDN_ASSIGN_OR_RETURN(OutputPair bases, state_.ReadBases(count));
  return std::move(bases.actual);
}

absl::StatusOr<DeltaRuleResult> RunDeltaRule(DeltaRuleForm form, const DeltaRuleProblem& problem, Backend& backend) {
  if (form == DeltaRuleForm::kStages) return RunStages(CutIntoChunks(problem, kStageChunk), backend);
  GDN_ASSIGN_OR_RETURN(DeltaRuleSlots slots, DeltaRuleSlots::Make(backend, problem.dims, problem.initial));
  DeltaRuleResult result;
  GDN_ASSIGN_OR_RETURN(result.output, slots.Advance(form, problem));
  GDN_ASSIGN_OR_RETURN(result.states, slots.States(static_cast<int32_t>(problem.sequences())));
  return result;
}

Difference CompareResults(const DeltaRuleResult& actual, const DeltaRuleResult& expected) {
  Difference difference = Compare(actual.output, expected.output);
  difference.Merge(Compare(actual.states, expected.states));
  return difference;
}

Difference CompareSequences(const DeltaRuleProblem& problem, const DeltaRuleResult& actual,
                            const DeltaRuleResult& expected) {
  const OwnedBatch batch(problem.lengths);
  Difference difference;
  const auto merge = [&difference](const std::vector<float>& a, const std::vector<float>& b, int64_t first,
                                   int64_t count) {
    difference.Merge(
        Compare(absl::MakeConstSpan(a).subspan(first, count), absl::MakeConstSpan(b).subspan(first, count)));
  };
  const int64_t row = problem.dims.value_features();
  for (int64_t i = 0; i < problem.sequences(); ++i) {
    merge(actual.output, expected.output, batch.cu_seqlens[i] * row, problem.lengths[i] * row);
    merge(actual.states, expected.states, i * problem.dims.state_elements(), problem.dims.state_elements());
  }
  return difference;
}

CaseResult CompareWithReference(const DeltaRuleProblem& problem, const DeltaRuleResult& actual) {
  GDN_RETURN_IF_ERROR(DumpDeltaRule(problem, actual));
  return CompareResults(actual, DeltaRuleReferenceResult(problem));
}

CaseResult CompareDeltaRule(DeltaRuleForm form, const DeltaRuleProblem& problem, Backend& backend) {
  GDN_ASSIGN_OR_RETURN(const DeltaRuleResult actual, RunDeltaRule(form, problem, backend));
  return CompareWithReference(problem, actual);
}

CaseResult CompareDeltaRuleCalls(const DeltaRuleProblem& whole, const std::vector<DeltaRuleCall>& calls,
                                 Backend& backend) {
  GDN_ASSIGN_OR_RETURN(DeltaRuleSlots slots, DeltaRuleSlots::Make(backend, whole.dims, whole.initial));
  DeltaRuleResult actual;
  int64_t token = 0;
  for (const DeltaRuleCall& call : calls) {
    GDN_ASSIGN_OR_RETURN(const std::vector<float> output,
                         slots.Advance(call.form, Part(whole, token, token + call.tokens, {})));
    actual.output.insert(actual.output.end(), output.begin(), output.end());
    token += call.tokens;
  }
  GDN_ASSIGN_OR_RETURN(actual.states, slots.States(1));
  return CompareWithReference(whole, actual);
}

absl::Status DumpDeltaRule(const DeltaRuleProblem& problem, const DeltaRuleResult& result) {
  if (!Dumping()) return absl::OkStatus();
  const LayerDims& dims = problem.dims;
  const OwnedBatch batch(problem.lengths);
  const int64_t tokens = problem.tokens();
  const std::vector<int64_t> gates{tokens, dims.value_heads};
  std::vector<int64_t> decays = gates;
  if (dims.decays_by_channel()) decays.push_back(dims.key_dim);
  const std::vector<int64_t> keys{tokens, dims.key_heads, dims.key_dim};
  const std::vector<int64_t> values{tokens, dims.value_heads, dims.value_dim};
  const std::vector<int64_t> states{problem.sequences(), dims.value_heads, dims.key_dim, dims.value_dim};
  return Dump("delta_rule", {},
              {{"in.cu_seqlens", {problem.sequences() + 1}, {batch.cu_seqlens.begin(), batch.cu_seqlens.end()}},
               {"in.q", keys, problem.q},
               {"in.k", keys, problem.k},
               {"in.v", values, problem.v},
               {"in.g", decays, problem.g},
               {"in.beta", gates, problem.beta},
               {"in.initial_state", states, problem.initial},
               {"out.output", values, result.output},
               {"out.final_state", states, result.states}});
}

const char* DeltaRuleFormName(DeltaRuleForm form) {
  constexpr const char* kNames[] = {"scan", "chunk", "decode", "draft", "stages"};
  return kNames[static_cast<int>(form)];
}

}  // namespace gdn::parity
