#include "tools/gdn_parity/cases/delta_rule_stages_cases.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/primitives/triangular_solve/triangular_solve.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {
namespace {

const LayerDims kGrouped = Dims(2, 4, 40, 24);
const LayerDims kOdd = Dims(1, 3, 33, 17);

// What a stage gets: the problem, and what the stages before it make by their references, so that a row's difference is
// its own.
struct Stages {
  explicit Stages(ChunkedProblem chunked) : problem(std::move(chunked)), made(StagesReference(problem)) {
    const DeltaRuleProblem& rule = problem.rule;
    const int64_t tokens = rule.tokens(), chunks = problem.chunk_offsets.back(), c = problem.chunk_tokens;
    const int64_t heads = rule.dims.value_heads, key_dim = rule.dims.key_dim, value_dim = rule.dims.value_dim;
    gates = {tokens, heads};
    matrices = {chunks, heads, c, c};
    const Shape keys{tokens, rule.dims.key_heads, key_dim}, values{tokens, heads, value_dim};
    const Shape states{rule.sequences(), heads, key_dim, value_dim};
    tensors = {{"q", {keys, &rule.q}},
               {"k", {keys, &rule.k}},
               {"v", {values, &rule.v}},
               {"g", {gates, &rule.g}},
               {"beta", {gates, &rule.beta}},
               {"initial_state", {states, &rule.initial}},
               {"a", {matrices, &made.a}},
               {"mask", {matrices, &made.mask}},
               {"t", {matrices, &made.t}},
               {"attention", {matrices, &made.attention}},
               {"w", {{tokens, heads, key_dim}, &made.w}},
               {"u", {values, &made.u}},
               {"h", {{chunks, heads, key_dim, value_dim}, &made.h}},
               {"v_new", {values, &made.v_new}},
               {"output", {values, &made.output}},
               {"final_state", {states, &made.final_state}}};
  }
  Stages(const Stages&) = delete;  // `tensors` points into it

  const ChunkedProblem problem;
  const StageTensors made;
  Shape gates, matrices;
  std::map<std::string, std::pair<Shape, const std::vector<float>*>> tensors;
};

template <typename Params, typename T>
using Fields = std::vector<std::pair<const char*, T * Params::*>>;

// A call with the batch, its index arrays, these tensors in and out, and the decay sums where the stage reads them.
template <typename Params>
OperatorCall<Params> StageCall(std::string op, const Stages& s, Params params, const Fields<Params, const float>& in,
                               const Fields<Params, float>& out, bool decays = true, Attributes attributes = {}) {
  attributes["chunk_tokens"] = absl::StrCat(s.problem.chunk_tokens);
  params.batch = s.problem.batch();
  const Shape entries{s.problem.rule.sequences() + 1};
  OperatorCall<Params> call(std::move(op), std::move(attributes), std::move(params));
  call.In(
          [](Params & p) -> auto& { return p.batch.cu_seqlens; }, "cu_seqlens", entries, s.problem.cu_seqlens)
      .In(
          [](Params & p) -> auto& { return p.batch.chunk_offsets; }, "chunk_offsets", entries, s.problem.chunk_offsets);
  for (const auto& [name, field] : in) call.In(field, name, s.tensors.at(name).first, *s.tensors.at(name).second);
  for (const auto& [name, field] : out) call.Out(field, name, s.tensors.at(name).first);
  if constexpr (std::is_same_v<decltype(Params::g_sum), const double*>) {
    if (decays) call.In(&Params::g_sum, "g_sum", s.gates, s.made.g_sum);
  }
  return call;
}

template <bool kWantsA>
CaseResult FusedCumsumKkt(const Stages& s, Backend& backend) {
  using P = CumsumKktParams;
  OperatorCall<P> call = StageCall<P>("cumsum_kkt", s, {.k_stride = s.problem.k_stride()},
                                      {{"k", &P::k}, {"g", &P::g}, {"beta", &P::beta}}, {});
  // The other one is made too, and not compared.
  if (kWantsA) {
    call.Scratch(&P::g_sum, static_cast<int64_t>(s.made.g_sum.size())).Out(&P::a, "a", s.matrices);
  } else {
    call.Out(&P::g_sum, "g_sum", s.gates).Scratch(&P::a, s.problem.matrix_elements());
  }
  return call.Run(backend, CumsumKktReference, CumsumKktGpu);
}

CaseResult DecaySums(const Stages& s, Backend& backend) {
  using P = ChunkDecaySumsParams;
  return StageCall<P>("chunk_decay_sums", s, {}, {{"g", &P::g}}, {})
      .Out(&P::g_sum, "g_sum", s.gates)
      .Run(backend, ChunkDecaySumsReference, ChunkDecaySumsGpu);
}

template <bool kDecays>
CaseResult Kkt(const Stages& s, Backend& backend) {
  using P = ChunkKktParams;
  return StageCall<P>("chunk_kkt", s, {.k_stride = s.problem.k_stride()}, {{"k", &P::k}, {"beta", &P::beta}},
                      {{"a", &P::a}}, kDecays, {{"decays", kDecays ? "1" : "0"}})
      .Run(backend, ChunkKktReference, ChunkKktGpu);
}

CaseResult DecayMask(const Stages& s, Backend& backend) {
  using P = ChunkDecayMaskParams;
  return StageCall<P>("chunk_decay_mask", s, {}, {}, {{"mask", &P::mask}})
      .Run(backend, ChunkDecayMaskReference, ChunkDecayMaskGpu);
}

CaseResult Attention(const Stages& s, Backend& backend) {
  using P = ChunkAttentionParams;
  return StageCall<P>("chunk_attention", s, {.q_stride = s.problem.k_stride(), .k_stride = s.problem.k_stride()},
                      {{"q", &P::q}, {"k", &P::k}}, {{"attention", &P::attention}})
      .Run(backend, ChunkAttentionReference, ChunkAttentionGpu);
}

CaseResult SolveInPlace(const Stages& s, Backend& backend) {
  using P = UnitLowerInverseParams;
  return OperatorCall<P>("unit_lower_inverse", {}, {.batch = s.problem.matrices(), .size = s.problem.chunk_tokens})
      .InPlaceIf(true, &P::a, &P::inverse, "a", "a", s.matrices, s.made.a)
      .Run(backend, UnitLowerInverseReference, UnitLowerInverseGpu);
}

CaseResult Wy(const Stages& s, Backend& backend) {
  using P = WyParams;
  return StageCall<P>("wy", s, {.k_stride = s.problem.k_stride(), .v_stride = s.problem.v_stride()},
                      {{"t", &P::t}, {"k", &P::k}, {"v", &P::v}, {"beta", &P::beta}}, {{"w", &P::w}, {"u", &P::u}})
      .Run(backend, WyReference, WyGpu);
}

CaseResult State(const Stages& s, Backend& backend) {
  using P = ChunkStateParams;
  return StageCall<P>("chunk_state", s, {.k_stride = s.problem.k_stride()},
                      {{"k", &P::k}, {"w", &P::w}, {"u", &P::u}, {"initial_state", &P::initial_state}},
                      {{"h", &P::h}, {"v_new", &P::v_new}, {"final_state", &P::final_state}})
      .Run(backend, ChunkStateReference, ChunkStateGpu);
}

CaseResult Output(const Stages& s, Backend& backend) {
  using P = ChunkOutputParams;
  return StageCall<P>("chunk_output", s, {.q_stride = s.problem.k_stride()},
                      {{"q", &P::q}, {"h", &P::h}, {"attention", &P::attention}, {"v_new", &P::v_new}},
                      {{"output", &P::output}})
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
    {"fused_cumsum_kkt_g", "stage_cumsum_kkt_g", FusedCumsumKkt<false>},
    {"fused_cumsum_kkt_A", "stage_cumsum_kkt_a", FusedCumsumKkt<true>},
    {"chunk_cumsum", "stage_decay_sums", DecaySums},
    {"chunk_A", "stage_kkt", Kkt<true>},
    {nullptr, "stage_decay_mask", DecayMask},
    {nullptr, "stage_attention", Attention},
    {"chunk_solve_in_place", nullptr, SolveInPlace},
    {"chunk_w_u", "stage_wy", Wy},
    {"chunk_state", "stage_state", State},
    {"chunk_output", "stage_output", Output},
    {"wy_kkt", nullptr, Kkt<false>},
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
      cases.push_back(GpuCase("shapes", stage.shapes_test, absl::StrCat(DimsName(dims), " T=1,0,C+5,C,0 C=16,32,64"),
                              kSumTolerance, EveryChunk(stage.run, [dims](int32_t c, RandomTensor& random) {
                                return RandomDeltaRule(dims, {1, 0, c + 5, c, 0}, {}, random);
                              })));
    }
  }
}

// All stages in a row against the recurrence.
void AddAllStages(std::vector<ParityCase>& cases) {
  const auto add = [&cases](int32_t c, const std::string& what, double tolerance, const LayerDims& dims, int32_t tokens,
                            const DeltaRuleInputs& inputs, std::function<void(DeltaRuleProblem&)> change = nullptr) {
    cases.push_back(GpuCase("shapes", "stages", absl::StrCat("C=", c, " T=", tokens, what), tolerance,
                            [=](Backend& backend, RandomTensor& random) -> CaseResult {
                              DeltaRuleProblem problem = RandomDeltaRule(dims, {tokens}, inputs, random);
                              if (change != nullptr) change(problem);
                              GDN_ASSIGN_OR_RETURN(const DeltaRuleResult actual,
                                                   RunStages(CutIntoChunks(problem, c), backend));
                              return CompareWithReference(problem, actual);
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
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  BackendData data(backend);
  GDN_ASSIGN_OR_RETURN(const DeltaRuleTensors tensors, Upload(rule, data));
  const DeltaRuleParams& device = tensors.rule;
  DeltaRuleStagesParams p{.batch = problem.batch(),
                          .q = device.q,
                          .k = device.k,
                          .v = device.v,
                          .q_stride = device.q_stride,
                          .k_stride = device.k_stride,
                          .v_stride = device.v_stride,
                          .g = device.g,
                          .beta = device.beta,
                          .initial_state = tensors.state,
                          .output = device.output};
  GDN_ASSIGN_OR_RETURN(p.batch.cu_seqlens, data.Upload(problem.cu_seqlens));
  GDN_ASSIGN_OR_RETURN(p.batch.chunk_offsets, data.Upload(problem.chunk_offsets));
  GDN_ASSIGN_OR_RETURN(p.g_sum, data.Poisoned<double>(static_cast<int64_t>(rule.g.size())));
  GDN_ASSIGN_OR_RETURN(p.t, data.Poisoned(problem.matrix_elements()));
  GDN_ASSIGN_OR_RETURN(p.attention, data.Poisoned(problem.matrix_elements()));
  GDN_ASSIGN_OR_RETURN(p.w, data.Poisoned(static_cast<int64_t>(rule.g.size()) * rule.dims.key_dim));
  GDN_ASSIGN_OR_RETURN(p.v_new, data.Poisoned(values));
  GDN_ASSIGN_OR_RETURN(p.h, data.Poisoned(problem.matrices() * rule.dims.key_dim * rule.dims.value_dim));
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
