// Rows of the delta rule with log decays as extreme as float32 has them, beta 0, 1 and 2, and keys that repeat.
//
// A problem has two heads for each extreme log decay. The first head has it at every token, the second at a few tokens
// among weak decays; by channel, the second head has it in all channels or in one. Heads are compared one by one.
// -infinity means a decay of 0. After a NaN the head's outputs and its state are NaN, and nothing else is.
//
// The reference is the recurrence in float64, on the same float32 inputs. With beta = 2 and one key that repeats, a
// step multiplies the key's row of the state by 1 - 2 k.k, which is -1 but for the rounding of k. So nothing is
// forgotten, the row grows with sqrt(T), and every rounding stays. They are independent, in the scan and, as a decode
// has k_e.k_t in two parts, in a decode too. Their sum, beside the row, comes to 1e-5 in some thousand tokens, or
// sooner if the row happens to be short at the end. Decodes of long rows are held to RepeatedKeyError a token. With
// five seeds a CPU came to 1.2e-5 at K = 32 and T = 1,024, 1.6e-5 at T = 4,096 and 1.1e-5 at K = 128 and T = 2,048; the
// executor of GPU kernels came to 2.2e-5, 7.1e-5 and 1.6e-5. On a GPU keys below 64 leave lanes without a part of the
// state, and what such a lane rounds depends on the size of u alone.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "tools/gdn_parity/cases/delta_rule_runner.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/shape_budget.h"

namespace gdn::parity {
namespace {

using Form = DeltaRuleForm;

constexpr float kExtremes[] = {0.0f,
                               -1e9f,
                               -1e16f,
                               std::numeric_limits<float>::lowest(),
                               -std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN()};
constexpr int32_t kExtremeHeads = 2 * static_cast<int32_t>(std::size(kExtremes));
constexpr float kForgotten = -10.0f;  // of the other tokens' log decays, about twice their sum
constexpr double kTolerance = 1e-5;
// A token's share of the error with one key, whose rounding would be up to 2.4e-7.
double RepeatedKeyError(const LayerDims& dims) { return dims.key_dim < 64 ? 3e-8 : 1.5e-8; }

enum class Keys { kRandom, kRepeated };

struct ExtremeCase {
  LayerDims dims;
  int32_t tokens;
  float beta;
  Keys keys;
};

// Tokens of a head that have the extreme: about the borders of chunks and logs. A NaN comes once, late.
std::vector<int64_t> ExtremeTokens(float extreme, int64_t tokens) {
  if (std::isnan(extreme)) return {tokens * 3 / 5};
  std::vector<int64_t> which;
  for (const int64_t t : {int64_t{3}, int64_t{15}, int64_t{16}, int64_t{40}, int64_t{63}, int64_t{64}, tokens / 2}) {
    if (t < tokens) which.push_back(t);
  }
  return which;
}

void SetDecays(DeltaRuleProblem& problem) {
  const LayerDims& dims = problem.dims;
  const int64_t width = dims.decay_dim();
  const int64_t tokens = problem.tokens();
  const auto set = [&](int64_t token, int64_t head, int64_t channels, float g) {
    std::fill_n(problem.g.begin() + (token * kExtremeHeads + head) * width, channels, g);
  };
  for (int64_t i = 0; i < kExtremeHeads / 2; ++i) {
    for (int64_t t = 0; t < tokens; ++t) set(t, 2 * i, width, kExtremes[i]);
    bool one_channel = true;
    for (const int64_t t : ExtremeTokens(kExtremes[i], tokens)) {
      set(t, 2 * i + 1, one_channel ? 1 : width, kExtremes[i]);
      one_channel = !one_channel;
    }
  }
}

DeltaRuleProblem MakeProblem(const ExtremeCase& c, RandomTensor& random) {
  DeltaRuleProblem problem =
      RandomDeltaRule(c.dims, {c.tokens}, {.strongest = kForgotten / static_cast<float>(c.tokens)}, random);
  std::fill(problem.beta.begin(), problem.beta.end(), c.beta);
  if (c.beta > 1.0f) problem.max_beta = 2.0f;
  const int64_t row = c.dims.key_features();
  for (int64_t i = row; c.keys == Keys::kRepeated && i < static_cast<int64_t>(problem.k.size()); ++i) {
    problem.k[i] = problem.k[i % row];
  }
  SetDecays(problem);
  return problem;
}

// `rows` rows of `width` floats, `stride` apart.
std::vector<float> Gather(const std::vector<float>& x, int64_t first, int64_t rows, int64_t stride, int64_t width) {
  std::vector<float> gathered;
  for (int64_t i = 0; i < rows; ++i) {
    const auto begin = x.begin() + first + i * stride;
    gathered.insert(gathered.end(), begin, begin + width);
  }
  return gathered;
}

CaseResult RunExtreme(Form form, const ExtremeCase& c, Backend& backend, RandomTensor& random) {
  const DeltaRuleProblem problem = MakeProblem(c, random);
  GDN_ASSIGN_OR_RETURN(const DeltaRuleResult actual, RunDeltaRule(form, problem, backend));
  const DeltaRuleResult expected = DeltaRuleReferenceResult(problem);
  Difference difference;
  const int64_t value_dim = c.dims.value_dim;
  const int64_t state = int64_t{c.dims.key_dim} * value_dim;
  for (int64_t head = 0; head < kExtremeHeads; ++head) {
    const auto outputs = [&](const DeltaRuleResult& result) {
      return Gather(result.output, head * value_dim, c.tokens, c.dims.value_features(), value_dim);
    };
    const auto states = [&](const DeltaRuleResult& result) {
      return Gather(result.states, head * state, 1, state, state);
    };
    difference.Merge(CompareWithNaNs(outputs(actual), outputs(expected)));
    difference.Merge(CompareWithNaNs(states(actual), states(expected)));
  }
  return difference;
}

constexpr Form kPrefills[] = {Form::kScan, Form::kChunk};
constexpr Form kDecodes[] = {Form::kDecode, Form::kDraft};

void Add(const ExtremeCase& c, absl::Span<const Form> forms, double tolerance, std::vector<ParityCase>& cases) {
  for (const Form form : forms) {
    ParityCase& row = cases.emplace_back(ParityCase{
        "extreme", absl::StrCat("extreme_gates_", DeltaRuleFormName(form)),
        absl::StrCat(DimsName(c.dims), " T=", c.tokens, " beta=", c.beta, c.keys == Keys::kRepeated ? " one key" : ""),
        tolerance, std::bind_front(RunExtreme, form, c), tolerance});
    row.by_channel = c.dims.decays_by_channel();
    // A decode is a launch a token. The executor takes minutes for long rows, so it runs one beta for each kind of
    // keys: beta only scales inputs, and every beta has short rows.
    const bool one_of_its_kind = c.beta == (c.keys == Keys::kRandom ? 1.0f : 2.0f);
    row.slow_on_executor = StateUpdates(c.dims, {c.tokens}) > (form == Form::kDecode ? kHostBudget : 3 * kHostBudget) ||
                           (c.tokens >= 512 && !one_of_its_kind);
  }
}

void AddDecodes(const ExtremeCase& c, std::vector<ParityCase>& cases) {
  const bool keeps_all = c.beta > 1.0f && c.keys == Keys::kRepeated;
  Add(c, kDecodes, keeps_all ? std::max(kTolerance, RepeatedKeyError(c.dims) * c.tokens) : kTolerance, cases);
}

void AddAllForms(const ExtremeCase& c, std::vector<ParityCase>& cases) {
  Add(c, kPrefills, kTolerance, cases);
  AddDecodes(c, cases);
}

}  // namespace

void AddExtremeGatesCases(std::vector<ParityCase>& cases) {
  for (const bool by_channel : {false, true}) {
    const auto with_decay = [by_channel](const LayerDims& dims) { return by_channel ? ByChannel(dims) : dims; };
    // Keys that fill lanes and chunks' tiles, and others; those beyond 256 elements have kernels of their own.
    for (const LayerDims& dims :
         {Dims(2, kExtremeHeads, 17, 9), Dims(1, kExtremeHeads, 128, 16), Dims(1, kExtremeHeads, 300, 4)}) {
      AddAllForms({with_decay(dims), 70, 1.0f, Keys::kRandom}, cases);
    }
    const LayerDims small = with_decay(Dims(1, kExtremeHeads, 32, 8));
    for (const int32_t tokens : {100, 512, 4096}) {
      for (const float beta : {0.0f, 1.0f, 2.0f}) AddAllForms({small, tokens, beta, Keys::kRandom}, cases);
      for (const float beta : {0.0f, 1.0f}) AddAllForms({small, tokens, beta, Keys::kRepeated}, cases);
    }
    for (const int32_t tokens : {100, 512, 1024}) {
      for (const float beta : {1.999f, 2.0f}) AddAllForms({small, tokens, beta, Keys::kRepeated}, cases);
    }
    AddDecodes({small, 4096, 2.0f, Keys::kRepeated}, cases);
    AddAllForms({with_decay(Dims(1, kExtremeHeads, 128, 16)), 2048, 1.999f, Keys::kRepeated}, cases);
  }
}

}  // namespace gdn::parity
