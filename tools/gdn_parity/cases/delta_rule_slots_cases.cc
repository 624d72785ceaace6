// Rows of what a session's state is carried through: calls on end, forks, drafts. S is the state's side, K = V.

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "kernels/layer/accept_draft.h"
#include "tools/gdn_parity/cases/delta_rule_runner.h"
#include "tools/gdn_parity/cases/operator_cases.h"

namespace gdn::parity {
namespace {

// The state is square.
struct Square {
  int32_t side;
  bool by_channel = false;
};

LayerDims SquareDims(const Square& s) {
  const LayerDims dims = Dims(1, 2, s.side, s.side);
  return s.by_channel ? ByChannel(dims) : dims;
}

// Prefills of either path, then decode steps, as one sequence.
CaseResult PrefillThenDecode(const Square& square, DeltaRuleForm form, int32_t prefill, int32_t decode,
                             Backend& backend, RandomTensor& random) {
  const DeltaRuleProblem whole = RandomDeltaRule(SquareDims(square), {2 * prefill + decode},
                                                 {.strongest = -0.2f, .state_deviation = 0.0f}, random);
  return CompareDeltaRuleCalls(whole, {{form, prefill}, {form, prefill}, {DeltaRuleForm::kDecode, decode}}, backend);
}

// One decode step on the state that `tokens` tokens have left.
CaseResult SingleStep(const Square& square, int32_t tokens, Backend& backend, RandomTensor& random) {
  const DeltaRuleProblem whole = RandomDeltaRule(SquareDims(square), {tokens + 1}, {.strongest = -0.05f}, random);
  const DeltaRuleProblem before = Part(whole, 0, tokens, whole.initial);
  const DeltaRuleProblem step = Part(whole, tokens, tokens + 1, DeltaRuleReferenceResult(before).states);
  return CompareDeltaRule(DeltaRuleForm::kDecode, step, backend);
}

// A state that is kept as bf16 between steps; the reference's is not.
CaseResult Bf16State(const Square& square, int32_t steps, Backend& backend, RandomTensor& random) {
  const DeltaRuleProblem whole = RandomDeltaRule(SquareDims(square), {steps}, {.strongest = -0.2f}, random);
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
  return CompareResults(actual, expected);
}

// No state yet: every form starts from zero.
CaseResult FirstCall(const Square& square, DeltaRuleForm form, Backend& backend, RandomTensor& random) {
  return CompareDeltaRule(form, RandomDeltaRule(SquareDims(square), {7}, {.state_deviation = 0.0f}, random), backend);
}

// Forks of one state, decoded in one call over its base; those past L fold into slots of their own.
CaseResult Forks(const Square& square, const std::vector<int32_t>& lengths, Backend& backend, RandomTensor& random) {
  const int32_t forks = static_cast<int32_t>(lengths.size());
  DeltaRuleProblem problem = RandomDeltaRule(SquareDims(square), lengths, {.strongest = -0.2f}, random);
  const int64_t elements = problem.dims.state_elements();
  for (int32_t i = 1; i < forks; ++i) {
    std::copy_n(problem.initial.begin(), elements, problem.initial.begin() + i * elements);
  }
  // The shared state lies behind slots that hold nothing yet.
  std::vector<float> states((forks + 1) * elements);
  std::copy_n(problem.initial.begin(), elements, states.begin() + forks * elements);
  GDN_ASSIGN_OR_RETURN(DeltaRuleSlots slots, DeltaRuleSlots::Make(backend, problem.dims, states));
  std::vector<int32_t> bases(forks, forks);
  DeltaRuleResult actual;
  GDN_ASSIGN_OR_RETURN(actual.output, slots.Advance(DeltaRuleForm::kDraft, problem, /*draft=*/false, bases.data()));
  for (int32_t i = 0; i < forks; ++i) {
    if (lengths[i] >= kLogCapacity) bases[i] = i;
  }
  GDN_ASSIGN_OR_RETURN(actual.states, slots.States(forks, bases.data()));
  return CompareWithReference(problem, actual);
}

// Plain decodes, a draft of other tokens that is dropped, then the rest as a draft that is accepted.
CaseResult Drafts(const Square& square, int32_t before, int32_t tokens, Backend& backend, RandomTensor& random) {
  const DeltaRuleProblem whole = RandomDeltaRule(SquareDims(square), {before + tokens}, {.strongest = -0.2f}, random);
  GDN_ASSIGN_OR_RETURN(DeltaRuleSlots slots, DeltaRuleSlots::Make(backend, whole.dims, whole.initial));
  const auto decode = [&](const DeltaRuleProblem& part, bool draft) {
    return slots.Advance(DeltaRuleForm::kDraft, part, draft);
  };
  DeltaRuleResult actual;
  GDN_ASSIGN_OR_RETURN(actual.output, decode(Part(whole, 0, before, {}), /*draft=*/false));
  const int32_t kept = slots.log_lengths()[0];
  GDN_RETURN_IF_ERROR(decode(RandomDeltaRule(whole.dims, {tokens}, {}, random), /*draft=*/true).status());
  slots.log_lengths()[0] = kept;
  GDN_ASSIGN_OR_RETURN(const std::vector<float> drafted,
                       decode(Part(whole, before, before + tokens, {}), /*draft=*/true));
  actual.output.insert(actual.output.end(), drafted.begin(), drafted.end());
  const int32_t slot = 0;
  GDN_RETURN_IF_ERROR(FoldAccepted(
      backend, {.pool = slots.pool(), .count = 1, .slots = &slot, .log_lengths = slots.log_lengths().data()}));
  GDN_ASSIGN_OR_RETURN(actual.states, slots.States(1));
  return CompareWithReference(whole, actual);
}

}  // namespace

void AddDeltaRuleSlotsCases(std::vector<ParityCase>& cases) {
  bool by_channel = false;
  const auto add = [&cases, &by_channel](const std::string& test, const std::string& shape, CaseRunner run,
                                         double tolerance = kPipelineTolerance) {
    cases.push_back({by_channel ? "kda" : "cache", test, shape, tolerance, std::move(run), tolerance});
    cases.back().by_channel = by_channel;
  };
  using Form = DeltaRuleForm;
  for (const Square& square :
       {Square{32}, Square{128}, Square{256}, Square{32, true}, Square{128, true}, Square{40, true}}) {
    by_channel = square.by_channel;
    const std::string name = absl::StrCat("S=", square.side);
    for (const Form form : {Form::kScan, Form::kChunk}) {
      for (const auto& [prefill, decode] : {std::pair{5, 3}, std::pair{32, 18}}) {
        add(absl::StrCat("prefill_", DeltaRuleFormName(form), "_then_decode"),
            absl::StrCat(name, " T=", prefill, "+", prefill, "+", decode, "x1"),
            std::bind_front(PrefillThenDecode, square, form, prefill, decode));
      }
    }
    for (const Form form : {Form::kScan, Form::kChunk, Form::kDecode, Form::kDraft}) {
      add("first_call", absl::StrCat(name, " T=7 ", DeltaRuleFormName(form)), std::bind_front(FirstCall, square, form));
    }
    add("fork_over_a_shared_base", absl::StrCat(name, " T=5,16,1,24 in one call"),
        std::bind_front(Forks, square, std::vector<int32_t>{5, 16, 1, 24}));
    for (const auto& [before, tokens] : {std::pair{3, 5}, std::pair{15, 1}, std::pair{9, 24}}) {
      add("draft_dropped_and_accepted", absl::StrCat(name, " T=", before, "+", tokens),
          std::bind_front(Drafts, square, before, tokens));
    }
    add("single_step_on_256_tokens", absl::StrCat(name, " T=256+1"), std::bind_front(SingleStep, square, 256));
  }
  for (const Square& square : {Square{32}, Square{32, true}}) {
    by_channel = square.by_channel;
    add("bf16_state", "S=32 T=256x1", std::bind_front(Bf16State, square, 256), kBf16StateTolerance);
  }
}

}  // namespace gdn::parity
