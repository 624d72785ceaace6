// Suite "cache": what a session's state is carried through. S is the state's side, K = V.

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "kernels/layer/accept_draft.h"
#include "tools/gdn_parity/backend_data.h"
#include "tools/gdn_parity/delta_rule_rows.h"
#include "tools/gdn_parity/parity_case.h"

namespace gdn::parity {
namespace {

constexpr char kSuite[] = "cache";
constexpr int32_t kMaxDraft = 24;

using Result = absl::StatusOr<Difference>;

LayerDims SquareDims(int32_t side) { return {.key_heads = 1, .value_heads = 2, .key_dim = side, .value_dim = side}; }

// Tokens [begin, end) of a problem of one sequence, starting from `initial`.
DeltaRuleProblem Part(const DeltaRuleProblem& whole, int64_t begin, int64_t end, const std::vector<float>& initial) {
  const auto cut = [=](const std::vector<float>& x, int64_t row) {
    return std::vector<float>(x.begin() + begin * row, x.begin() + end * row);
  };
  DeltaRuleProblem part{.dims = whole.dims, .lengths = {static_cast<int32_t>(end - begin)}};
  part.q = cut(whole.q, whole.dims.key_features());
  part.k = cut(whole.k, whole.dims.key_features());
  part.v = cut(whole.v, whole.dims.value_features());
  part.g = cut(whole.g, whole.dims.value_heads);
  part.beta = cut(whole.beta, whole.dims.value_heads);
  part.initial = initial;
  return part;
}

struct Call {
  DeltaRuleForm form;
  int64_t tokens;
};

// The calls on end, the state carried from one to the next, against one whole pass of the reference.
Result RunCalls(const DeltaRuleProblem& whole, const std::vector<Call>& calls, Backend& backend) {
  const DeltaRuleResult expected = DeltaRuleReferenceResult(whole);
  DeltaRuleResult actual;
  actual.states = whole.initial;
  int64_t token = 0;
  for (const Call& call : calls) {
    const DeltaRuleProblem part = Part(whole, token, token + call.tokens, actual.states);
    GDN_ASSIGN_OR_RETURN(const DeltaRuleResult result, RunDeltaRule(call.form, part, backend));
    actual.output.insert(actual.output.end(), result.output.begin(), result.output.end());
    actual.states = result.states;
    token += call.tokens;
  }
  GDN_RETURN_IF_ERROR(DumpDeltaRule(whole, actual));
  Difference difference = Compare(actual.output, expected.output);
  difference.Merge(Compare(actual.states, expected.states));
  return difference;
}

// Prefills of either path, then decode steps, as one sequence.
Result PrefillThenDecode(int32_t side, DeltaRuleForm form, int32_t prefill, int32_t decode, Backend& backend,
                         RandomTensor& random) {
  const DeltaRuleProblem whole =
      RandomDeltaRule(SquareDims(side), {2 * prefill + decode}, {.strongest = -0.2f, .state_deviation = 0.0f}, random);
  return RunCalls(whole, {{form, prefill}, {form, prefill}, {DeltaRuleForm::kDecode, decode}}, backend);
}

// One decode step on the state that `tokens` tokens have left.
Result SingleStep(int32_t side, int32_t tokens, Backend& backend, RandomTensor& random) {
  const DeltaRuleProblem whole = RandomDeltaRule(SquareDims(side), {tokens + 1}, {.strongest = -0.05f}, random);
  const DeltaRuleProblem before = Part(whole, 0, tokens, whole.initial);
  const DeltaRuleProblem step = Part(whole, tokens, tokens + 1, DeltaRuleReferenceResult(before).states);
  return CompareDeltaRule(DeltaRuleForm::kDecode, step, backend);
}

// A state that is kept as bf16 between steps; the reference's is not.
Result Bf16State(int32_t side, int32_t steps, Backend& backend, RandomTensor& random) {
  const DeltaRuleProblem whole = RandomDeltaRule(SquareDims(side), {steps}, {.strongest = -0.2f}, random);
  const DeltaRuleResult expected = DeltaRuleReferenceResult(whole);
  DeltaRuleResult actual;
  actual.states = whole.initial;
  for (int32_t step = 0; step < steps; ++step) {
    for (float& x : actual.states) x = BF16ToFloat(FloatToBF16(x));
    GDN_ASSIGN_OR_RETURN(const DeltaRuleResult result,
                         RunDeltaRule(DeltaRuleForm::kScan, Part(whole, step, step + 1, actual.states), backend));
    actual.output.insert(actual.output.end(), result.output.begin(), result.output.end());
    actual.states = result.states;
  }
  Difference difference = Compare(actual.output, expected.output);
  difference.Merge(Compare(actual.states, expected.states));
  return difference;
}

// One decode call of the whole problem, sequence i on slot i.
absl::StatusOr<std::vector<float>> DecodeCall(const DeltaRuleProblem& problem, const StatePoolView& pool,
                                              const int32_t* base_slots, bool draft, std::vector<int32_t>& log_lengths,
                                              Backend& backend) {
  const LayerDims& dims = problem.dims;
  const OwnedBatch batch(problem.lengths);
  const int64_t outputs = static_cast<int64_t>(problem.v.size());
  BackendData data(backend);
  DeltaRuleDecodeParams params{.rule = {.pool = pool,
                                        .batch = batch.view(),
                                        .q_stride = dims.key_features(),
                                        .k_stride = dims.key_features(),
                                        .v_stride = dims.value_features()},
                               .log_lengths = log_lengths.data(),
                               .base_slots = base_slots,
                               .draft = draft};
  GDN_ASSIGN_OR_RETURN(params.rule.q, data.Upload(problem.q));
  GDN_ASSIGN_OR_RETURN(params.rule.k, data.Upload(problem.k));
  GDN_ASSIGN_OR_RETURN(params.rule.v, data.Upload(problem.v));
  GDN_ASSIGN_OR_RETURN(params.rule.g, data.Upload(problem.g));
  GDN_ASSIGN_OR_RETURN(params.rule.beta, data.Upload(problem.beta));
  GDN_ASSIGN_OR_RETURN(params.rule.output, data.Poisoned(outputs));
  GDN_RETURN_IF_ERROR(backend.DeltaRuleDecode(params));
  return data.Download(params.rule.output, outputs);
}

// Outputs and the folded states of slots 0 .. against the reference's.
Result CompareFolded(const DeltaRuleProblem& problem, const StatePoolView& pool, DeltaRuleResult actual,
                     Backend& backend) {
  for (int32_t i = 0; i < static_cast<int32_t>(problem.sequences()); ++i) {
    GDN_ASSIGN_OR_RETURN(const SlotImage image, ReadSlot(backend, pool, i, /*log_length=*/0, 0));
    actual.states.insert(actual.states.end(), image.base.begin(), image.base.end());
  }
  const DeltaRuleResult expected = DeltaRuleReferenceResult(problem);
  GDN_RETURN_IF_ERROR(DumpDeltaRule(problem, actual));
  Difference difference = Compare(actual.output, expected.output);
  difference.Merge(Compare(actual.states, expected.states));
  return difference;
}

SlotImage BaseImage(std::vector<float> base) {
  SlotImage image;
  image.base = std::move(base);
  return image;
}

// Forks of one state, decoded in one call over its base; those past L fold into slots of their own.
Result Forks(int32_t side, const std::vector<int32_t>& lengths, Backend& backend, RandomTensor& random) {
  const int32_t forks = static_cast<int32_t>(lengths.size());
  DeltaRuleProblem problem = RandomDeltaRule(SquareDims(side), lengths, {.strongest = -0.2f}, random);
  const int64_t elements = problem.dims.state_elements();
  for (int32_t i = 1; i < forks; ++i) {
    std::copy_n(problem.initial.begin(), elements, problem.initial.begin() + i * elements);
  }
  GDN_ASSIGN_OR_RETURN(StatePair state, StatePair::Make(backend, problem.dims, forks + 1, kMaxDraft));
  const int32_t shared = forks;
  GDN_RETURN_IF_ERROR(state.Write(shared, 0, BaseImage({problem.initial.begin(), problem.initial.begin() + elements})));
  std::vector<int32_t> slots(forks), bases(forks, shared), log_lengths(forks, 0);
  std::iota(slots.begin(), slots.end(), 0);
  DeltaRuleResult actual;
  GDN_ASSIGN_OR_RETURN(actual.output,
                       DecodeCall(problem, state.device(), bases.data(), /*draft=*/false, log_lengths, backend));
  for (int32_t i = 0; i < forks; ++i) {
    if (lengths[i] >= kLogCapacity) bases[i] = i;
  }
  GDN_RETURN_IF_ERROR(backend.MaterializeState({.pool = state.device(),
                                                .count = forks,
                                                .src = slots.data(),
                                                .dst = slots.data(),
                                                .log_lengths = log_lengths.data(),
                                                .src_bases = bases.data()}));
  return CompareFolded(problem, state.device(), std::move(actual), backend);
}

// Plain decodes, a draft of other tokens that is dropped, then the rest as a draft that is accepted.
Result Drafts(int32_t side, int32_t before, int32_t tokens, Backend& backend, RandomTensor& random) {
  const DeltaRuleProblem whole = RandomDeltaRule(SquareDims(side), {before + tokens}, {.strongest = -0.2f}, random);
  GDN_ASSIGN_OR_RETURN(StatePair state, StatePair::Make(backend, whole.dims, 1, kMaxDraft));
  const StatePoolView& pool = state.device();
  GDN_RETURN_IF_ERROR(state.Write(0, 0, BaseImage(whole.initial)));
  std::vector<int32_t> log_lengths = {0};
  DeltaRuleResult actual;
  const auto decode = [&](const DeltaRuleProblem& part, bool draft) {
    return DecodeCall(part, pool, /*base_slots=*/nullptr, draft, log_lengths, backend);
  };
  GDN_ASSIGN_OR_RETURN(actual.output, decode(Part(whole, 0, before, {}), /*draft=*/false));
  const int32_t kept = log_lengths[0];
  GDN_RETURN_IF_ERROR(decode(RandomDeltaRule(whole.dims, {tokens}, {}, random), /*draft=*/true).status());
  log_lengths[0] = kept;
  GDN_ASSIGN_OR_RETURN(const std::vector<float> drafted,
                       decode(Part(whole, before, before + tokens, {}), /*draft=*/true));
  actual.output.insert(actual.output.end(), drafted.begin(), drafted.end());
  const int32_t slot = 0;
  GDN_RETURN_IF_ERROR(
      FoldAccepted(backend, {.pool = pool, .count = 1, .slots = &slot, .log_lengths = log_lengths.data()}));
  GDN_RETURN_IF_ERROR(state.FoldDevice(log_lengths));
  return CompareFolded(whole, pool, std::move(actual), backend);
}

void Add(const char* test, const std::string& shape, double tolerance,
         std::function<Result(Backend&, RandomTensor&)> run, std::vector<ParityCase>& cases) {
  ParityCase c{kSuite, test, shape, tolerance, std::move(run)};
  c.max_tolerance = tolerance;
  cases.push_back(std::move(c));
}

}  // namespace

void AddCacheCases(std::vector<ParityCase>& cases) {
  for (const int32_t side : {32, 128, 256}) {
    const std::string name = absl::StrCat("S=", side);
    for (const DeltaRuleForm form : {DeltaRuleForm::kScan, DeltaRuleForm::kChunk}) {
      for (const auto& [prefill, decode] : {std::pair{5, 3}, std::pair{32, 18}}) {
        Add(
            form == DeltaRuleForm::kScan ? "prefill_scan_then_decode" : "prefill_chunk_then_decode",
            absl::StrCat(name, " T=", prefill, "+", prefill, "+", decode, "x1"), kPipelineTolerance,
            [=, prefill = prefill, decode = decode](Backend& backend, RandomTensor& random) {
              return PrefillThenDecode(side, form, prefill, decode, backend, random);
            },
            cases);
      }
    }
    // No state yet: decode and prefill start from zero.
    for (const DeltaRuleForm form :
         {DeltaRuleForm::kScan, DeltaRuleForm::kChunk, DeltaRuleForm::kDecode, DeltaRuleForm::kDraft}) {
      Add(
          "first_call", absl::StrCat(name, " T=7 ", DeltaRuleFormName(form)), kPipelineTolerance,
          [=](Backend& backend, RandomTensor& random) {
            return CompareDeltaRule(form, RandomDeltaRule(SquareDims(side), {7}, {.state_deviation = 0.0f}, random),
                                    backend);
          },
          cases);
    }
    Add(
        "fork_over_a_shared_base", absl::StrCat(name, " T=5,16,1,24 in one call"), kPipelineTolerance,
        [=](Backend& backend, RandomTensor& random) {
          return Forks(side, {5, 16, 1, 24}, backend, random);
        },
        cases);
    for (const auto& [before, tokens] : {std::pair{3, 5}, std::pair{15, 1}, std::pair{9, 24}}) {
      Add(
          "draft_dropped_and_accepted", absl::StrCat(name, " T=", before, "+", tokens), kPipelineTolerance,
          [=, before = before, tokens = tokens](Backend& backend, RandomTensor& random) {
            return Drafts(side, before, tokens, backend, random);
          },
          cases);
    }
    Add(
        "single_step_on_256_tokens", absl::StrCat(name, " T=256+1"), kPipelineTolerance,
        [=](Backend& backend, RandomTensor& random) { return SingleStep(side, 256, backend, random); }, cases);
  }
  Add(
      "bf16_state", "S=32 T=256x1", kBf16StateTolerance,
      [](Backend& backend, RandomTensor& random) { return Bf16State(32, 256, backend, random); }, cases);
}

}  // namespace gdn::parity
