// Suite "fla": the shapes that flash-linear-attention and FlashInfer test their chunk and fused-recurrent gated delta
// rules with. B sequences of T tokens are packed; heads are theirs, K = V = D. Where theirs has more q heads than k and
// v heads, k and v are repeated: H = HV = q heads.

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/gdn_parity/cases/delta_rule_runner.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/shape_budget.h"

namespace gdn::parity {
namespace {

using FlaForm = DeltaRuleForm;

const std::vector<FlaForm> kChunkForms{FlaForm::kChunk, FlaForm::kStages};

enum class Gate {
  kLogSigmoid,  // g = log sigmoid(x) / normalizer, x uniform in [0, 1]
  kLogUniform,  // g = log(alpha), alpha uniform in (0, 1]
  kNone,        // g = 0
};

struct FlaShape {
  int32_t key_heads, value_heads, dim;
  std::vector<int32_t> lengths;
  float scale = 1.0f;  // 0: D^-0.5
  Gate gate = Gate::kLogSigmoid;
  float normalizer = 1.0f;
  float masked = 0.0f;  // share of tokens without decay
  bool fresh = false;
};

CaseResult RunShape(const FlaShape& shape, const LayerDims& dims, const std::vector<int32_t>& lengths, FlaForm form,
                    Backend& backend, RandomTensor& random) {
  DeltaRuleProblem problem =
      RandomDeltaRule(dims, lengths, {.scale = shape.scale, .state_deviation = shape.fresh ? 0.0f : 1.0f}, random);
  const int64_t gates = static_cast<int64_t>(problem.g.size());
  std::vector<float> x = random.Uniform(gates, 0.0f, 1.0f);
  const std::vector<float> drawn = random.Uniform(gates, 0.0f, 1.0f);
  for (int64_t i = 0; i < gates; ++i) {
    float g = 0.0f;
    if (shape.gate == Gate::kLogSigmoid) g = -std::log1p(std::exp(-x[i])) / shape.normalizer;
    if (shape.gate == Gate::kLogUniform) g = std::log(std::max(x[i], 1e-6f));
    problem.g[i] = drawn[i] < shape.masked ? 0.0f : g;
  }
  return CompareDeltaRule(form, problem, backend);
}

std::string ShapeName(const LayerDims& dims, const std::vector<int32_t>& lengths, const FlaShape& shape) {
  const bool equal = std::adjacent_find(lengths.begin(), lengths.end(), std::not_equal_to<>()) == lengths.end();
  const std::string packed =
      equal && lengths.size() > 1 ? absl::StrCat(lengths[0], " x", lengths.size()) : absl::StrJoin(lengths, ",");
  std::string gate = shape.gate == Gate::kNone ? " g=0" : shape.gate == Gate::kLogUniform ? " log u" : "";
  if (shape.normalizer != 1.0f) absl::StrAppend(&gate, " g/", shape.normalizer);
  if (shape.masked > 0.0f) absl::StrAppend(&gate, " masked ", shape.masked);
  return absl::StrCat("H=", dims.key_heads, " HV=", dims.value_heads, " D=", dims.key_dim, " T=", packed,
                      " scale=", shape.scale == 0.0f ? std::string("D^-0.5") : absl::StrCat(shape.scale), gate);
}

void AddShape(const std::string& source, const FlaShape& shape, const std::vector<FlaForm>& forms,
              std::vector<ParityCase>& cases) {
  LayerDims dims = Dims(shape.key_heads, shape.value_heads, shape.dim, shape.dim);
  std::vector<int32_t> lengths = shape.lengths;
  const auto add = [&](const std::string& note, bool large) {
    for (const FlaForm form : forms) {
      cases.push_back({"fla", absl::StrCat(source, "_", DeltaRuleFormName(form)),
                       absl::StrCat(ShapeName(dims, lengths, shape), note), kPipelineTolerance,
                       std::bind_front(RunShape, shape, dims, lengths, form)});
      cases.back().large = large;
      cases.back().gpu_only = form == FlaForm::kStages;
    }
  };
  const bool large = StateUpdates(dims, lengths) > kHostBudget;
  add("", large);
  if (!large) return;
  const std::string full = absl::StrCat(" (of H=", dims.key_heads, " T=", lengths[0], " x", lengths.size(), ")");
  ReduceShape(dims, lengths);
  // Several large shapes may come down to one.
  const std::string name = ShapeName(dims, lengths, shape);
  const std::string test = absl::StrCat(source, "_", DeltaRuleFormName(forms[0]));
  const bool known = std::any_of(cases.begin(), cases.end(), [&](const ParityCase& c) {
    return !c.large && c.suite == "fla" && c.test == test &&
           (c.shape == name || absl::StartsWith(c.shape, name + " ("));
  });
  if (!known) add(full, false);
}

std::vector<int32_t> Equal(int32_t sequences, int32_t tokens) { return std::vector<int32_t>(sequences, tokens); }

void AddFla(std::vector<ParityCase>& cases) {
  for (const int32_t tokens : {1, 15, 63, 300}) {
    for (const int32_t dim : {32, 64, 100, 256}) {
      for (const float normalizer : {0.1f, 1.0f, 10.0f}) {
        AddShape("fla_recurrent",
                 {.key_heads = 2, .value_heads = 4, .dim = dim, .lengths = Equal(2, tokens), .normalizer = normalizer},
                 {FlaForm::kScan}, cases);
      }
    }
  }
  const FlaShape of_recurrent[] = {
      {.key_heads = 1, .value_heads = 1, .dim = 64, .lengths = Equal(1, 63)},
      {.key_heads = 4, .value_heads = 4, .dim = 60, .lengths = Equal(2, 500)},
      {.key_heads = 2, .value_heads = 8, .dim = 128, .lengths = Equal(2, 1000), .normalizer = 0.1f},
      {.key_heads = 2, .value_heads = 2, .dim = 128, .lengths = Equal(3, 1024), .scale = 0.1f},
      {.key_heads = 3, .value_heads = 3, .dim = 128, .lengths = Equal(4, 1024), .normalizer = 10.0f},
      {.key_heads = 4, .value_heads = 4, .dim = 64, .lengths = Equal(4, 2048), .scale = 0.1f},
      {.key_heads = 4, .value_heads = 8, .dim = 128, .lengths = Equal(2, 1024), .normalizer = 10.0f},
  };
  for (const FlaShape& shape : of_recurrent) AddShape("fla_recurrent", shape, {FlaForm::kScan}, cases);
  for (const int32_t tokens : {1, 15, 63, 300}) {
    for (const int32_t dim : {32, 64, 100, 256}) {
      for (const float masked : {0.0f, 0.5f}) {
        AddShape("fla_chunk",
                 {.key_heads = 2,
                  .value_heads = 2,
                  .dim = dim,
                  .lengths = Equal(2, tokens),
                  .scale = masked > 0.0f ? 0.1f : 1.0f,
                  .normalizer = masked > 0.0f ? 10.0f : 0.1f,
                  .masked = masked,
                  .fresh = true},
                 kChunkForms, cases);
      }
    }
  }
  const FlaShape packed[] = {
      {.key_heads = 4, .value_heads = 4, .dim = 60, .lengths = {15}},
      {.key_heads = 4, .value_heads = 4, .dim = 64, .lengths = {256, 244, 500}},
      {.key_heads = 4, .value_heads = 4, .dim = 64, .lengths = {256, 244, 500}, .masked = 0.5f},
      {.key_heads = 4, .value_heads = 4, .dim = 100, .lengths = {15, 85, 200, 900, 800}},
      {.key_heads = 2, .value_heads = 2, .dim = 128, .lengths = {122, 107, 171, 600}, .masked = 0.5f},
  };
  for (const FlaShape& shape : packed) AddShape("fla_chunk_varlen", shape, kChunkForms, cases);
}

void AddFlashInfer(std::vector<ParityCase>& cases) {
  // Heads of q, k and v: 1/1/1, 4/1/1, 3/3/3, 6/2/2, 1/1/2, 2/2/4, 16/16/32, 16/16/64.
  const std::pair<int32_t, int32_t> all_heads[] = {{1, 1}, {4, 4}, {3, 3}, {6, 6}, {1, 2}, {2, 4}, {16, 32}, {16, 64}};
  const std::vector<int32_t> all_lengths[] = {{64},           {128}, {256},      {256, 256},
                                              {64, 128, 512}, {31},  {61},       {91},
                                              {121},          {251}, {511, 501}, {31, 63, 93, 123, 150, 500}};
  const auto add = [&cases](const char* test, int32_t key_heads, int32_t value_heads,
                            const std::vector<int32_t>& lengths, const std::vector<FlaForm>& forms,
                            bool fresh = false) {
    AddShape(test,
             {.key_heads = key_heads,
              .value_heads = value_heads,
              .dim = 128,
              .lengths = lengths,
              .scale = 0.0f,
              .gate = Gate::kLogUniform,
              .fresh = fresh},
             forms, cases);
  };
  for (const auto& [key_heads, value_heads] : all_heads) {
    for (const std::vector<int32_t>& lengths : all_lengths) {
      // The largest heads with a few lengths; each other pair with all.
      if (value_heads > 8 && lengths.size() < 3) continue;
      add("flashinfer_prefill", key_heads, value_heads, lengths, kChunkForms, /*fresh=*/true);
    }
  }
  // A sequence of no tokens, and no decay at all.
  for (const Gate gate : {Gate::kLogUniform, Gate::kNone}) {
    AddShape("flashinfer_prefill",
             {.key_heads = 1, .value_heads = 1, .dim = 128, .lengths = {64, 0}, .scale = 0.1f, .gate = gate},
             kChunkForms, cases);
  }
  for (const int32_t sequences : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}) {
    add("flashinfer_step", 16, 32, Equal(sequences, 1), {FlaForm::kScan, FlaForm::kDecode});
  }
  for (const int32_t tokens : {2, 3, 4, 5, 6, 7, 8}) {
    add("flashinfer_multi_token", 16, 32, Equal(8, tokens), {FlaForm::kDraft});
  }
}

}  // namespace

void AddDeltaRuleFlaCases(std::vector<ParityCase>& cases) {
  AddFla(cases);
  AddFlashInfer(cases);
}

}  // namespace gdn::parity
