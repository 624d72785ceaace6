// Rows of the forms of the recurrence (delta_rule_scan, _chunk, _decode and primitives/delta_rule_stages) against the
// token-by-token reference, outputs and final states. Other people's shapes are in delta_rule_llama_cases and
// delta_rule_fla_cases, forks and drafts in delta_rule_slots_cases.

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "tools/gdn_parity/cases/delta_rule_runner.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/shape_budget.h"

namespace gdn::parity {
namespace {

// Calls of the same lengths, each carrying on where the one before stopped; the last sequence starts fresh.
CaseResult RunCalls(DeltaRuleForm form, const LayerDims& dims, const std::vector<int32_t>& lengths, int calls,
                    float strongest, Backend& backend, RandomTensor& random) {
  DeltaRuleProblem problem = RandomDeltaRule(dims, lengths, {.strongest = strongest}, random);
  std::fill(problem.initial.end() - dims.state_elements(), problem.initial.end(), 0.0f);
  GDN_ASSIGN_OR_RETURN(DeltaRuleSlots slots, DeltaRuleSlots::Make(backend, dims, problem.initial));
  OutputPair outputs;
  DeltaRuleResult expected;
  for (int call = 0; call < calls; ++call) {
    if (call > 0) problem = RandomDeltaRule(dims, lengths, {.strongest = strongest, .state_deviation = 0.0f}, random);
    if (call > 0) problem.initial = expected.states;
    expected = DeltaRuleReferenceResult(problem);
    GDN_ASSIGN_OR_RETURN(const std::vector<float> output, slots.Advance(form, problem));
    outputs.Append(output, expected.output);
  }
  GDN_ASSIGN_OR_RETURN(const std::vector<float> states, slots.States(problem.sequences()));
  Difference difference = Compare(outputs.actual, outputs.expected);
  difference.Merge(CompareSequences(problem, {expected.output, states}, expected));
  return difference;
}

void AddDeltaRuleSuite(DecayKind decay, std::vector<ParityCase>& cases) {
  for (DecayShape shape : kDecayShapes) {
    shape.dims.decay = decay;
    const auto add = [&cases, &shape](const char* test, DeltaRuleForm form, double tolerance,
                                      const std::vector<int32_t>& lengths, int calls) {
      const bool by_channel = shape.dims.decays_by_channel();
      cases.push_back({by_channel ? "kda" : "delta_rule", test,
                       absl::StrCat(DimsName(shape.dims), " g>=", shape.strongest, " T=", absl::StrJoin(lengths, ","),
                                    calls > 1 ? absl::StrCat(" x", calls) : ""),
                       tolerance, std::bind_front(RunCalls, form, shape.dims, lengths, calls, shape.strongest)});
      cases.back().by_channel = by_channel;
    };
    for (const int32_t tokens : {1, 32, 40, 64, 100, 128}) {
      const int calls = tokens == 1 ? 20 : 1;  // one token alone may be all cancellation
      add("scan", DeltaRuleForm::kScan, kScanTolerance, {tokens}, calls);
      add("chunk", DeltaRuleForm::kChunk, kChunkTolerance, {tokens}, calls);
    }
    add("scan_packed", DeltaRuleForm::kScan, kScanTolerance, {1, 40, 0, 100}, 2);
    add("chunk_packed", DeltaRuleForm::kChunk, kChunkTolerance, {1, 40, 0, 100, 64}, 2);
    add("recurrent_in_place", DeltaRuleForm::kScan, kScanTolerance, {1, 1, 1}, 50);
    add("deferred_decode", DeltaRuleForm::kDecode, kDeferredTolerance, {1}, 70);
    add("deferred_decode", DeltaRuleForm::kDecode, kDeferredTolerance, {1, 1, 1, 1, 1}, 40);
    add("deferred_decode_ragged", DeltaRuleForm::kDraft, kDeferredTolerance, {3, 1, 0, 8}, 20);
  }
}

// Either of the two tensors: a difference of one says where to look.
void AddParitySuite(std::vector<ParityCase>& cases) {
  const auto add = [&cases](const char* test, std::vector<float> DeltaRuleResult::*tensor) {
    cases.push_back({"parity", test, "H=2 HV=4 K=64 V=40 T=20,1,7", kSumTolerance,
                     [tensor](Backend& backend, RandomTensor& random) -> CaseResult {
                       const DeltaRuleProblem problem = RandomDeltaRule(Dims(2, 4, 64, 40), {20, 1, 7}, {}, random);
                       const DeltaRuleResult expected = DeltaRuleReferenceResult(problem);
                       GDN_ASSIGN_OR_RETURN(const DeltaRuleResult actual,
                                            RunDeltaRule(DeltaRuleForm::kScan, problem, backend));
                       GDN_RETURN_IF_ERROR(DumpDeltaRule(problem, actual));
                       return Compare(actual.*tensor, expected.*tensor);
                     }});
  };
  add("recurrent_output", &DeltaRuleResult::output);
  add("recurrent_state", &DeltaRuleResult::states);
}

std::vector<float> RoundToBf16(std::vector<float> x) {
  for (float& value : x) value = BF16ToFloat(FloatToBF16(value));
  return x;
}

// What a bf16 model sees: q, k, v and the output are rounded, the reference is not.
CaseResult RunBf16(DeltaRuleForm form, const LayerDims& dims, int32_t tokens, Backend& backend, RandomTensor& random) {
  DeltaRuleProblem problem = RandomDeltaRule(dims, {tokens}, {}, random);
  const DeltaRuleResult expected = DeltaRuleReferenceResult(problem);
  problem.q = RoundToBf16(problem.q);
  problem.k = RoundToBf16(problem.k);
  problem.v = RoundToBf16(problem.v);
  GDN_ASSIGN_OR_RETURN(DeltaRuleResult actual, RunDeltaRule(form, problem, backend));
  GDN_RETURN_IF_ERROR(DumpDeltaRule(problem, actual));  // the problem as it was computed, before the output is rounded
  actual.output = RoundToBf16(actual.output);
  return CompareResults(actual, expected);
}

CaseResult RunTokens(DeltaRuleForm form, const LayerDims& dims, int32_t tokens, Backend& backend,
                     RandomTensor& random) {
  return CompareDeltaRule(form, RandomDeltaRule(dims, {tokens}, {}, random), backend);
}

void AddOpsSuite(std::vector<ParityCase>& cases) {
  for (const LayerDims& dims : {Dims(1, 2, 64, 64), Dims(1, 2, 128, 128), Dims(2, 4, 32, 48), Dims(2, 4, 48, 32)}) {
    const auto add = [&cases, &dims](const char* test, auto* run, int32_t tokens, double tolerance) {
      for (const DeltaRuleForm form : {DeltaRuleForm::kScan, DeltaRuleForm::kChunk, DeltaRuleForm::kStages}) {
        cases.push_back({"ops", absl::StrCat(test, DeltaRuleFormName(form)),
                         absl::StrCat(DimsName(dims), " T=", tokens), tolerance,
                         std::bind_front(run, form, dims, tokens), tolerance});
        cases.back().gpu_only = form == DeltaRuleForm::kStages;
      }
    };
    for (const int32_t tokens : {1, 32, 40, 64}) add("scan_", RunTokens, tokens, kPipelineTolerance);
    add("scan_bf16_", RunBf16, 40, kBf16Tolerance);
  }
}

using Change = std::function<void(DeltaRuleProblem&)>;

// What may go wrong with values, not sizes. Gates that forget all at once, or nothing; keys that are alike, or nothing.
struct Values {
  const char* name;
  LayerDims dims;
  int32_t tokens;
  float strongest;
  Change change;
};

Change Drop(float drop) {
  return [drop](DeltaRuleProblem& p) {
    for (float& g : p.g) g *= 0.005f;
    for (const int64_t t : {0, 5, 9, 40, 63, 64, 100, 190}) {
      std::fill_n(p.g.begin() + t * p.dims.decay_features(), p.dims.decay_features(), drop);
    }
  };
}

Change Beta(float beta) {
  return [beta](DeltaRuleProblem& p) {
    std::fill(p.beta.begin(), p.beta.end(), beta);
    if (beta > 1.0f) p.max_beta = 2.0f;
  };
}

// All keys within `distance` of the first: A is nearly a triangle of ones.
Change CorrelatedKeys(float distance) {
  return [distance](DeltaRuleProblem& p) {
    const int64_t row = p.dims.key_features();
    for (int64_t i = row; i < static_cast<int64_t>(p.k.size()); ++i) p.k[i] = p.k[i % row] + distance * p.k[i];
    for (float& beta : p.beta) beta = 0.9f + 0.1f * beta;
  };
}

// Keys [first, last) of every `stride`.
Change ZeroKeys(int64_t first, int64_t last, int64_t stride) {
  return [=](DeltaRuleProblem& p) {
    const int64_t row = p.dims.key_features();
    for (int64_t t = first; t < last; t += stride) std::fill_n(p.k.begin() + t * row, row, 0.0f);
  };
}

// Every other channel forgets all, or nearly all, while its neighbour remembers.
Change EveryOtherChannel(float g) {
  return [g](DeltaRuleProblem& p) {
    for (size_t i = 0; i < p.g.size(); i += 2) p.g[i] = g;
  };
}

std::vector<Values> AllValues() {
  const LayerDims square = Dims(1, 2, 32, 32);
  const LayerDims narrow = Dims(1, 2, 32, 24);
  return {{"strong decay", square, 200, -20.0f, nullptr},
          {"always the strongest", square, 65, 0.0f,
           [](DeltaRuleProblem& p) { std::fill(p.g.begin(), p.g.end(), -20.0f); }},
          {"g once -1e2", square, 200, -1.0f, Drop(-1e2f)},
          {"g once -1e3", square, 200, -1.0f, Drop(-1e3f)},
          {"g once -1e4", square, 200, -1.0f, Drop(-1e4f)},
          {"g=0", square, 300, 0.0f, nullptr},
          {"beta=0", narrow, 150, -0.1f, Beta(0.0f)},
          {"beta=1", narrow, 150, -0.1f, Beta(1.0f)},
          {"beta=2", narrow, 150, -0.1f, Beta(2.0f)},
          {"every third k=0", Dims(2, 2, 32, 24), 150, -1.0f, ZeroKeys(0, 150, 3)},
          {"k=0 for a while", square, 65, -0.01f, ZeroKeys(5, 40, 1)},
          {"k=0", Dims(2, 2, 32, 24), 150, -1.0f, ZeroKeys(0, 150, 1)},
          {"k within 1e-3", Dims(1, 2, 64, 32), 200, -0.01f, CorrelatedKeys(1e-3f)},
          {"k within 0.02", square, 65, -0.01f, CorrelatedKeys(0.02f)}};
}

std::vector<int32_t> EveryLength() {
  std::vector<int32_t> lengths(131);
  std::iota(lengths.begin(), lengths.end(), 0);
  lengths.insert(lengths.end(), {250, 256, 500, 511, 512, 1000});
  return lengths;
}

// Each sequence is held to the tolerance by itself: that of the chunked form, the loosest.
void AddShapes(std::vector<ParityCase>& cases) {
  const auto add = [&cases](const LayerDims& dims, const std::vector<int32_t>& lengths, float strongest,
                            const std::string& name, const Change& change = nullptr) {
    for (const DeltaRuleForm form : {DeltaRuleForm::kScan, DeltaRuleForm::kChunk, DeltaRuleForm::kDraft}) {
      ParityCase& c = cases.emplace_back(
          ParityCase{dims.decays_by_channel() ? "kda" : "shapes", absl::StrCat("delta_rule_", DeltaRuleFormName(form)),
                     absl::StrCat(DimsName(dims), " T=", name), kChunkTolerance,
                     [=](Backend& backend, RandomTensor& random) -> CaseResult {
                       DeltaRuleProblem problem = RandomDeltaRule(dims, lengths, {.strongest = strongest}, random);
                       if (change != nullptr) change(problem);
                       GDN_ASSIGN_OR_RETURN(const DeltaRuleResult actual, RunDeltaRule(form, problem, backend));
                       return CompareSequences(problem, actual, DeltaRuleReferenceResult(problem));
                     }});
      c.slow_on_executor = StateUpdates(dims, lengths) > 2 * kHostBudget;
      c.by_channel = dims.decays_by_channel();
    }
  };
  // Heads in groups, dimensions that fill no vector and no wave, the largest.
  for (const LayerDims& dims : {Dims(1, 1, 128, 128), Dims(2, 4, 64, 64), Dims(2, 6, 48, 32), Dims(2, 2, 32, 48),
                                Dims(1, 3, 5, 7), Dims(3, 3, 1, 1), Dims(1, 2, 17, 33), Dims(1, 1, 96, 130)}) {
    add(dims, {1, 7, 64, 77, 150}, -1.0f, "1,7,64,77,150");
  }
  for (const LayerDims& dims : {Dims(1, 1, 1024, 40), Dims(1, 1, 40, 1024)}) add(dims, {70}, -1.0f, "70");
  for (const LayerDims& dims :
       {Dims(1, 2, 32, 48), Dims(2, 2, 48, 32), Dims(1, 3, 24, 40), Dims(1, 1, 33, 17), Dims(1, 1, 64, 64)}) {
    add(dims, {35}, -1.0f, "35");
  }
  for (const LayerDims& dims : {Dims(1, 1, 128, 128), Dims(1, 1, 200, 20), Dims(1, 1, 256, 64), Dims(1, 1, 260, 17)}) {
    add(dims, {5}, -1.0f, "5");
  }
  for (const LayerDims& dims : {Dims(1, 1, 512, 16), Dims(1, 1, 1000, 5), Dims(1, 1, 1024, 16)}) {
    add(dims, {17}, -1.0f, "17");
  }
  add(Dims(1, 2, 32, 48), {0, 1, 31, 32, 33, 64, 65}, -1.0f, "0,1,31,32,33,64,65");
  add(Dims(1, 2, 24, 20), EveryLength(), -0.2f, "0..130,250,256,500,511,512,1000");
  for (const Values& values : AllValues()) {
    add(values.dims, {values.tokens}, values.strongest, absl::StrCat(values.tokens, " ", values.name), values.change);
  }
  // The same where decays go by channel: sizes, lengths, values; lengths about a block of 16 and a chunk.
  for (const LayerDims& dims : {Dims(1, 1, 128, 128), Dims(2, 4, 64, 64), Dims(2, 6, 48, 32), Dims(1, 3, 5, 7),
                                Dims(3, 3, 1, 1), Dims(1, 2, 17, 33), Dims(1, 1, 96, 130)}) {
    add(ByChannel(dims), {1, 7, 64, 77, 150}, -1.0f, "1,7,64,77,150");
  }
  for (const LayerDims& dims : {Dims(1, 1, 1024, 40), Dims(1, 1, 40, 1024)}) add(ByChannel(dims), {70}, -1.0f, "70");
  for (const LayerDims& dims : {Dims(1, 1, 260, 17), Dims(1, 1, 1000, 5)}) add(ByChannel(dims), {17}, -1.0f, "17");
  add(ByChannel(Dims(1, 2, 32, 48)), {0, 1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65}, -5.0f,
      "0,1,15..17,31..33,47..49,63..65 g>=-5");
  add(ByChannel(Dims(1, 2, 24, 20)), EveryLength(), -0.2f, "0..130,250,256,500,511,512,1000");
  for (const Values& values : AllValues()) {
    add(ByChannel(values.dims), {values.tokens}, values.strongest, absl::StrCat(values.tokens, " ", values.name),
        values.change);
  }
  for (const float g : {-0.5f, -20.0f, -1e4f}) {
    add(ByChannel(Dims(1, 2, 64, 32)), {200}, -0.01f, absl::StrCat("200 every other channel ", g),
        EveryOtherChannel(g));
  }
  for (const LayerDims& dims : {Dims(1, 2, 48, 32), ByChannel(Dims(1, 2, 48, 32))}) {
    for (const DeltaRuleForm form : {DeltaRuleForm::kScan, DeltaRuleForm::kChunk}) {
      for (const int32_t prompt : {1, 64, 250, 299}) {
        cases.push_back({dims.decays_by_channel() ? "kda" : "shapes",
                         absl::StrCat("prefill_", DeltaRuleFormName(form), "_then_decode"),
                         absl::StrCat(DimsName(dims), " T=", prompt, "+", 300 - prompt, "x1"), kPipelineTolerance,
                         [=](Backend& backend, RandomTensor& random) {
                           return CompareDeltaRuleCalls(RandomDeltaRule(dims, {300}, {.strongest = -0.02f}, random),
                                                        {{form, prompt}, {DeltaRuleForm::kDecode, 300 - prompt}},
                                                        backend);
                         }});
        cases.back().by_channel = dims.decays_by_channel();
      }
    }
  }
}

}  // namespace

void AddDeltaRuleCases(std::vector<ParityCase>& cases) {
  for (const DecayKind decay : {DecayKind::kPerHead, DecayKind::kPerChannel}) AddDeltaRuleSuite(decay, cases);
  AddParitySuite(cases);
  AddOpsSuite(cases);
  AddShapes(cases);
}

}  // namespace gdn::parity
