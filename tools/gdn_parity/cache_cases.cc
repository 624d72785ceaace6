// Suite "cache": what a session's state is carried through. S is the state's side, K = V.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "tools/gdn_parity/conv_rows.h"
#include "tools/gdn_parity/delta_rule_rows.h"
#include "tools/gdn_parity/parity_case.h"

namespace gdn::parity {
namespace {

constexpr char kSuite[] = "cache";

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
        "single_step_on_256_tokens", absl::StrCat(name, " T=256+1"), kPipelineTolerance,
        [=](Backend& backend, RandomTensor& random) { return SingleStep(side, 256, backend, random); }, cases);
  }
  for (const int32_t width : {2, 4, 9}) {
    Add(
        "conv1d_split", absl::StrCat("C=96 W=", width, " T=1 x12 after a first call"), kSumTolerance,
        [=](Backend& backend, RandomTensor& random) {
          return CompareConv({.channels = 96, .width = width, .lengths = {1, 3}, .calls = 12, .fresh = true}, backend,
                             random);
        },
        cases);
  }
  Add(
      "bf16_state", "S=32 T=256x1", kBf16StateTolerance,
      [](Backend& backend, RandomTensor& random) { return Bf16State(32, 256, backend, random); }, cases);
}

}  // namespace gdn::parity
