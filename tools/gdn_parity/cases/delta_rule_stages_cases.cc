#include "tools/gdn_parity/cases/delta_rule_stages_cases.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/primitives/triangular_solve/triangular_solve.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {
namespace {

const LayerDims kGrouped{.key_heads = 2, .value_heads = 4, .key_dim = 40, .value_dim = 24};
const LayerDims kOdd{.key_heads = 1, .value_heads = 3, .key_dim = 33, .value_dim = 17};

// What a stage gets: the problem, and what the stages before it make by their references, so that a row's difference is
// its own.
struct Stages {
  explicit Stages(ChunkedProblem chunked) : problem(std::move(chunked)), made(StagesReference(problem)) {}

  using Shape = std::vector<int64_t>;
  Shape Gates() const { return {rule().tokens(), rule().dims.value_heads}; }
  Shape Keys() const { return {rule().tokens(), rule().dims.key_heads, rule().dims.key_dim}; }
  Shape Values() const { return {rule().tokens(), rule().dims.value_heads, rule().dims.value_dim}; }
  Shape Ws() const { return {rule().tokens(), rule().dims.value_heads, rule().dims.key_dim}; }
  Shape Matrices() const {
    return {problem.chunk_offsets.back(), rule().dims.value_heads, problem.chunk_tokens, problem.chunk_tokens};
  }
  Shape States(int64_t count) const {
    return {count, rule().dims.value_heads, rule().dims.key_dim, rule().dims.value_dim};
  }
  const DeltaRuleProblem& rule() const { return problem.rule; }

  ChunkedProblem problem;
  StageTensors made;
};

// A call with the batch and its index arrays.
template <typename Params>
OperatorCall<Params> StageCall(std::string op, const Stages& s, Params params, Attributes attributes = {}) {
  attributes["chunk_tokens"] = absl::StrCat(s.problem.chunk_tokens);
  params.batch = s.problem.batch();
  const std::vector<int64_t> entries{s.rule().sequences() + 1};
  OperatorCall<Params> call(std::move(op), std::move(attributes), std::move(params));
  call.In(
          [](Params & p) -> auto& { return p.batch.cu_seqlens; }, "cu_seqlens", entries, s.problem.cu_seqlens)
      .In(
          [](Params & p) -> auto& { return p.batch.chunk_offsets; }, "chunk_offsets", entries, s.problem.chunk_offsets);
  return call;
}

CaseResult FusedCumsumKkt(bool wants_a, const Stages& s, Backend& backend) {
  using Params = CumsumKktParams;
  OperatorCall<Params> call = StageCall<Params>("cumsum_kkt", s, {.k_stride = s.problem.k_stride()});
  call.In(&Params::k, "k", s.Keys(), s.rule().k)
      .In(&Params::g, "g", s.Gates(), s.rule().g)
      .In(&Params::beta, "beta", s.Gates(), s.rule().beta);
  // The other one is made too, and not compared.
  if (wants_a) {
    call.Scratch(&Params::g_sum, static_cast<int64_t>(s.made.g_sum.size())).Out(&Params::a, "a", s.Matrices());
  } else {
    call.Out(&Params::g_sum, "g_sum", s.Gates()).Scratch(&Params::a, s.problem.matrix_elements());
  }
  return call.Run(backend, CumsumKktReference, CumsumKktGpu);
}

CaseResult DecaySums(const Stages& s, Backend& backend) {
  using Params = ChunkDecaySumsParams;
  return StageCall<Params>("chunk_decay_sums", s, {})
      .In(&Params::g, "g", s.Gates(), s.rule().g)
      .Out(&Params::g_sum, "g_sum", s.Gates())
      .Run(backend, ChunkDecaySumsReference, ChunkDecaySumsGpu);
}

CaseResult Kkt(bool decays, const Stages& s, Backend& backend) {
  using Params = ChunkKktParams;
  OperatorCall<Params> call =
      StageCall<Params>("chunk_kkt", s, {.k_stride = s.problem.k_stride()}, {{"decays", decays ? "1" : "0"}});
  call.In(&Params::k, "k", s.Keys(), s.rule().k).In(&Params::beta, "beta", s.Gates(), s.rule().beta);
  if (decays) call.In(&Params::g_sum, "g_sum", s.Gates(), s.made.g_sum);
  return call.Out(&Params::a, "a", s.Matrices()).Run(backend, ChunkKktReference, ChunkKktGpu);
}

CaseResult DecayMask(const Stages& s, Backend& backend) {
  using Params = ChunkDecayMaskParams;
  return StageCall<Params>("chunk_decay_mask", s, {})
      .In(&Params::g_sum, "g_sum", s.Gates(), s.made.g_sum)
      .Out(&Params::mask, "mask", s.Matrices())
      .Run(backend, ChunkDecayMaskReference, ChunkDecayMaskGpu);
}

CaseResult Attention(const Stages& s, Backend& backend) {
  using Params = ChunkAttentionParams;
  return StageCall<Params>("chunk_attention", s, {.q_stride = s.problem.k_stride(), .k_stride = s.problem.k_stride()})
      .In(&Params::q, "q", s.Keys(), s.rule().q)
      .In(&Params::k, "k", s.Keys(), s.rule().k)
      .In(&Params::g_sum, "g_sum", s.Gates(), s.made.g_sum)
      .Out(&Params::attention, "attention", s.Matrices())
      .Run(backend, ChunkAttentionReference, ChunkAttentionGpu);
}

CaseResult SolveInPlace(const Stages& s, Backend& backend) {
  using Params = UnitLowerInverseParams;
  return OperatorCall<Params>("unit_lower_inverse", {}, {.batch = s.problem.matrices(), .size = s.problem.chunk_tokens})
      .InPlace(&Params::a, &Params::inverse, "a", "a", s.Matrices(), s.made.a)
      .Run(backend, UnitLowerInverseReference, UnitLowerInverseGpu);
}

CaseResult Wy(const Stages& s, Backend& backend) {
  using Params = WyParams;
  return StageCall<Params>("wy", s, {.k_stride = s.problem.k_stride(), .v_stride = s.problem.v_stride()})
      .In(&Params::t, "t", s.Matrices(), s.made.t)
      .In(&Params::k, "k", s.Keys(), s.rule().k)
      .In(&Params::v, "v", s.Values(), s.rule().v)
      .In(&Params::beta, "beta", s.Gates(), s.rule().beta)
      .In(&Params::g_sum, "g_sum", s.Gates(), s.made.g_sum)
      .Out(&Params::w, "w", s.Ws())
      .Out(&Params::u, "u", s.Values())
      .Run(backend, WyReference, WyGpu);
}

CaseResult State(const Stages& s, Backend& backend) {
  using Params = ChunkStateParams;
  const int64_t sequences = s.rule().sequences();
  return StageCall<Params>("chunk_state", s, {.k_stride = s.problem.k_stride()})
      .In(&Params::k, "k", s.Keys(), s.rule().k)
      .In(&Params::w, "w", s.Ws(), s.made.w)
      .In(&Params::u, "u", s.Values(), s.made.u)
      .In(&Params::g_sum, "g_sum", s.Gates(), s.made.g_sum)
      .In(&Params::initial_state, "initial_state", s.States(sequences), s.rule().initial)
      .Out(&Params::h, "h", s.States(s.problem.chunk_offsets.back()))
      .Out(&Params::v_new, "v_new", s.Values())
      .Out(&Params::final_state, "final_state", s.States(sequences))
      .Run(backend, ChunkStateReference, ChunkStateGpu);
}

CaseResult Output(const Stages& s, Backend& backend) {
  using Params = ChunkOutputParams;
  return StageCall<Params>("chunk_output", s, {.q_stride = s.problem.k_stride()})
      .In(&Params::q, "q", s.Keys(), s.rule().q)
      .In(&Params::h, "h", s.States(s.problem.chunk_offsets.back()), s.made.h)
      .In(&Params::attention, "attention", s.Matrices(), s.made.attention)
      .In(&Params::v_new, "v_new", s.Values(), s.made.v_new)
      .In(&Params::g_sum, "g_sum", s.Gates(), s.made.g_sum)
      .Out(&Params::output, "output", s.Values())
      .Run(backend, ChunkOutputReference, ChunkOutputGpu);
}

constexpr int32_t kChunkTokens[] = {16, 32, 64};

using StageRunner = CaseResult (*)(const Stages&, Backend&);

struct NamedStage {
  const char* parity_test;  // null: no row of suite parity
  const char* shapes_test;  // null: no row of suite shapes
  StageRunner run;
};

constexpr NamedStage kStages[] = {
    {"fused_cumsum_kkt_g", "stage_cumsum_kkt_g",
     [](const Stages& s, Backend& backend) { return FusedCumsumKkt(/*wants_a=*/false, s, backend); }},
    {"fused_cumsum_kkt_A", "stage_cumsum_kkt_a",
     [](const Stages& s, Backend& backend) { return FusedCumsumKkt(/*wants_a=*/true, s, backend); }},
    {"chunk_cumsum", "stage_decay_sums", DecaySums},
    {"chunk_A", "stage_kkt", [](const Stages& s, Backend& backend) { return Kkt(/*decays=*/true, s, backend); }},
    {nullptr, "stage_decay_mask", DecayMask},
    {nullptr, "stage_attention", Attention},
    {"chunk_solve_in_place", nullptr, SolveInPlace},
    {"chunk_w_u", "stage_wy", Wy},
    {"chunk_state", "stage_state", State},
    {"chunk_output", "stage_output", Output},
    {"wy_kkt", nullptr, [](const Stages& s, Backend& backend) { return Kkt(/*decays=*/false, s, backend); }},
};

// A row of a stage with chunks of 16, 32 and 64, on what `problem` makes for each.
CaseRunner EveryChunk(StageRunner run, std::function<DeltaRuleProblem(int32_t, RandomTensor&)> problem) {
  return [=](Backend& backend, RandomTensor& random) -> CaseResult {
    std::vector<CaseResult> calls;
    for (const int32_t c : kChunkTokens) calls.push_back(run(Stages(CutIntoChunks(problem(c, random), c)), backend));
    return Worst(calls);
  };
}

void AddStages(std::vector<ParityCase>& cases) {
  for (const NamedStage& stage : kStages) {
    if (stage.parity_test != nullptr) {
      cases.push_back(GpuCase("parity", stage.parity_test, "H=2 HV=4 K=40 V=24 T=C+5,0,3,C C=16,32,64", kSumTolerance,
                              EveryChunk(stage.run, [](int32_t c, RandomTensor& random) {
                                DeltaRuleProblem problem = RandomDeltaRule(kGrouped, {c + 5, 0, 3, c}, {}, random);
                                problem.g[7] = -1e4f;  // one token forgets everything
                                return problem;
                              })));
    }
    if (stage.shapes_test == nullptr) continue;
    for (const LayerDims& dims : {kGrouped, kOdd}) {
      cases.push_back(GpuCase("shapes", stage.shapes_test,
                              absl::StrCat("H=", dims.key_heads, " HV=", dims.value_heads, " K=", dims.key_dim,
                                           " V=", dims.value_dim, " T=1,0,C+5,C,0 C=16,32,64"),
                              kSumTolerance, EveryChunk(stage.run, [dims](int32_t c, RandomTensor& random) {
                                return RandomDeltaRule(dims, {1, 0, c + 5, c, 0}, {}, random);
                              })));
    }
  }
}

// All stages in a row against the recurrence.
CaseResult CompareAll(const ChunkedProblem& problem, Backend& backend) {
  GDN_ASSIGN_OR_RETURN(const DeltaRuleResult actual, RunStages(problem, backend));
  GDN_RETURN_IF_ERROR(DumpDeltaRule(problem.rule, actual));
  const DeltaRuleResult expected = DeltaRuleReferenceResult(problem.rule);
  return Worst({Compare(actual.output, expected.output), Compare(actual.states, expected.states)});
}

void AddAllStages(std::vector<ParityCase>& cases) {
  const auto add = [&cases](int32_t c, const std::string& what, double tolerance, const LayerDims& dims, int32_t tokens,
                            const DeltaRuleInputs& inputs, std::function<void(DeltaRuleProblem&)> change = nullptr) {
    cases.push_back(GpuCase("shapes", "stages", absl::StrCat("C=", c, " T=", tokens, what), tolerance,
                            [=](Backend& backend, RandomTensor& random) {
                              DeltaRuleProblem problem = RandomDeltaRule(dims, {tokens}, inputs, random);
                              if (change != nullptr) change(problem);
                              return CompareAll(CutIntoChunks(std::move(problem), c), backend);
                            }));
  };
  for (const int32_t c : kChunkTokens) {
    for (const int32_t tokens : {1, c - 1, c, c + 1, 3 * c + 7}) add(c, "", kPipelineTolerance, kOdd, tokens, {});
    add(c, " keys that point one way", kPipelineTolerance, kGrouped, 2 * c,
        {.strongest = -0.01f, .key_correlation = 0.95f},
        [](DeltaRuleProblem& problem) { std::fill(problem.beta.begin(), problem.beta.end(), 1.0f); });
    add(c, " g=-20", kPipelineTolerance, kGrouped, 2 * c + 3, {},
        [](DeltaRuleProblem& problem) { std::fill(problem.g.begin(), problem.g.end(), -20.0f); });
    // A float32 running sum would err by 1e-3 behind that token.
    add(c, " behind a token that forgets all", kPipelineTolerance, kGrouped, 2 * c, {.strongest = -0.01f},
        [](DeltaRuleProblem& problem) { std::fill_n(problem.g.begin() + 3 * kGrouped.value_heads, 4, -1e4f); });
  }
  // Well under what the pipeline is allowed, and the same for both: errors do not grow with the number of chunks.
  constexpr double kTight = 1e-6;
  for (const int32_t tokens : {32, 128}) add(64, " tight", kTight, kGrouped, tokens, {.strongest = -0.1f});
}

}  // namespace

ChunkedBatch ChunkedProblem::batch() const {
  return {.dims = rule.dims,
          .chunk_tokens = chunk_tokens,
          .sequences = static_cast<int32_t>(rule.sequences()),
          .tokens = cu_seqlens.back(),
          .chunks = chunk_offsets.back(),
          .cu_seqlens = cu_seqlens.data(),
          .chunk_offsets = chunk_offsets.data()};
}

ChunkedProblem CutIntoChunks(DeltaRuleProblem rule, int32_t chunk_tokens) {
  ChunkedProblem problem{.chunk_tokens = chunk_tokens, .cu_seqlens = {0}, .chunk_offsets = {0}};
  for (const int32_t length : rule.lengths) {
    problem.cu_seqlens.push_back(problem.cu_seqlens.back() + length);
    problem.chunk_offsets.push_back(problem.chunk_offsets.back() + (length + chunk_tokens - 1) / chunk_tokens);
  }
  problem.rule = std::move(rule);
  return problem;
}

StageTensors StagesReference(const ChunkedProblem& problem) {
  const DeltaRuleProblem& p = problem.rule;
  const ChunkedBatch batch = problem.batch();
  const int64_t ks = problem.k_stride();
  const int64_t vs = problem.v_stride();
  StageTensors t;
  t.g_sum.resize(p.g.size());
  for (std::vector<float>* x : {&t.a, &t.mask, &t.t, &t.attention}) x->resize(problem.matrix_elements());
  for (std::vector<float>* x : {&t.u, &t.v_new, &t.output}) x->resize(p.v.size());
  t.w.resize(p.g.size() * p.dims.key_dim);
  t.h.resize(problem.matrices() * p.dims.key_dim * p.dims.value_dim);
  t.final_state.resize(p.initial.size());
  CumsumKktReference({batch, p.k.data(), ks, p.g.data(), p.beta.data(), t.g_sum.data(), t.a.data()});
  ChunkDecayMaskReference({batch, t.g_sum.data(), t.mask.data()});
  UnitLowerInverseReference({problem.matrices(), problem.chunk_tokens, t.a.data(), t.t.data()});
  ChunkAttentionReference({batch, p.q.data(), p.k.data(), ks, ks, t.g_sum.data(), t.attention.data()});
  WyReference(
      {batch, t.t.data(), p.k.data(), p.v.data(), ks, vs, p.beta.data(), t.g_sum.data(), t.w.data(), t.u.data()});
  ChunkStateReference({batch, p.k.data(), ks, t.w.data(), t.u.data(), t.g_sum.data(), p.initial.data(), t.h.data(),
                       t.v_new.data(), t.final_state.data()});
  ChunkOutputReference(
      {batch, p.q.data(), ks, t.h.data(), t.attention.data(), t.v_new.data(), t.g_sum.data(), t.output.data()});
  return t;
}

absl::StatusOr<DeltaRuleResult> RunStages(const ChunkedProblem& problem, Backend& backend) {
  const DeltaRuleProblem& rule = problem.rule;
  const int64_t values = static_cast<int64_t>(rule.v.size());
  const int64_t states = static_cast<int64_t>(rule.initial.size());
  DeltaRuleStagesParams p{.batch = problem.batch(),
                          .q_stride = problem.k_stride(),
                          .k_stride = problem.k_stride(),
                          .v_stride = problem.v_stride()};
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  BackendData data(backend);
  GDN_ASSIGN_OR_RETURN(p.batch.cu_seqlens, data.UploadValues(problem.cu_seqlens));
  GDN_ASSIGN_OR_RETURN(p.batch.chunk_offsets, data.UploadValues(problem.chunk_offsets));
  GDN_ASSIGN_OR_RETURN(p.q, data.Upload(rule.q));
  GDN_ASSIGN_OR_RETURN(p.k, data.Upload(rule.k));
  GDN_ASSIGN_OR_RETURN(p.v, data.Upload(rule.v));
  GDN_ASSIGN_OR_RETURN(p.g, data.Upload(rule.g));
  GDN_ASSIGN_OR_RETURN(p.beta, data.Upload(rule.beta));
  GDN_ASSIGN_OR_RETURN(p.initial_state, data.Upload(rule.initial));
  GDN_ASSIGN_OR_RETURN(p.g_sum, data.PoisonedValues<double>(static_cast<int64_t>(rule.g.size())));
  GDN_ASSIGN_OR_RETURN(p.t, data.Poisoned(problem.matrix_elements()));
  GDN_ASSIGN_OR_RETURN(p.attention, data.Poisoned(problem.matrix_elements()));
  GDN_ASSIGN_OR_RETURN(p.w, data.Poisoned(static_cast<int64_t>(rule.g.size()) * rule.dims.key_dim));
  GDN_ASSIGN_OR_RETURN(p.v_new, data.Poisoned(values));
  GDN_ASSIGN_OR_RETURN(p.h, data.Poisoned(problem.matrices() * rule.dims.key_dim * rule.dims.value_dim));
  GDN_ASSIGN_OR_RETURN(p.output, data.Poisoned(values));
  GDN_ASSIGN_OR_RETURN(p.final_state, data.Poisoned(states));
  GDN_RETURN_IF_ERROR(DeltaRuleStagesGpu(p, stream));
  DeltaRuleResult result;
  GDN_ASSIGN_OR_RETURN(result.output, data.Download(p.output, values));
  GDN_ASSIGN_OR_RETURN(result.states, data.Download(p.final_state, states));
  return result;
}

void AddDeltaRuleStagesCases(std::vector<ParityCase>& cases) {
  AddStages(cases);
  AddAllStages(cases);
}

}  // namespace gdn::parity
