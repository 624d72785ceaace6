// Rows of chunks put together from primitives: the steps of one chunk against the references of the stages, then whole
// sequences of chunks against the recurrence.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/gdn_parity/cases/delta_rule_runner.h"
#include "tools/gdn_parity/cases/delta_rule_stages_cases.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/chunk_by_primitives.h"

namespace gdn::parity {
namespace {

struct ChunkShape {
  int32_t tokens;
  int32_t key_dim, value_dim;
  float strongest = -1.0f;  // g is uniform in [strongest, 0]
};

// `tokens` tokens of a value head from the first-th on.
ChunkView ViewOf(const DeltaRuleTensors& tensors, const LayerDims& dims, int32_t head, int64_t first, int64_t tokens) {
  const int64_t key = first * dims.key_features() + head / dims.group() * int64_t{dims.key_dim};
  const int64_t gate = first * dims.value_heads + head;
  return {.tokens = tokens,
          .q = tensors.rule.q + key,
          .k = tensors.rule.k + key,
          .key_stride = dims.key_features(),
          .v = tensors.rule.v + gate * dims.value_dim,
          .value_stride = dims.value_features(),
          .g = tensors.rule.g + gate,
          .beta = tensors.rule.beta + gate,
          .gate_stride = dims.value_heads};
}

// What of a chunk is compared; the last two carry a state in.
enum class Step { kAttention, kScores, kInverse, kIntraChunk, kStateUpdate, kOutputWithState };

CaseResult RunStep(Step step, const ChunkShape& shape, Backend& backend, RandomTensor& random) {
  const bool with_state = step == Step::kStateUpdate || step == Step::kOutputWithState;
  const LayerDims dims = Dims(1, 1, shape.key_dim, shape.value_dim);
  const ChunkedProblem problem = CutIntoChunks(
      RandomDeltaRule(dims, {shape.tokens}, {.strongest = shape.strongest, .state_deviation = with_state ? 1.0f : 0.0f},
                      random),
      shape.tokens);
  const StageTensors expected = StagesReference(problem);
  BackendData data(backend);
  GDN_ASSIGN_OR_RETURN(const DeltaRuleTensors tensors, Upload(problem.rule, data));
  GDN_ASSIGN_OR_RETURN(ChunkByPrimitives steps,
                       ChunkByPrimitives::Make(backend, shape.tokens, shape.key_dim, shape.value_dim));
  GDN_RETURN_IF_ERROR(steps.Run(ViewOf(tensors, dims, /*head=*/0, /*first=*/0, shape.tokens),
                                with_state ? tensors.state : nullptr, tensors.rule.output));
  const auto compare = [&data](const float* device, const std::vector<float>& reference) -> CaseResult {
    GDN_ASSIGN_OR_RETURN(const std::vector<float> actual,
                         data.Download(device, static_cast<int64_t>(reference.size())));
    return Compare(actual, reference);
  };
  switch (step) {
    case Step::kAttention:
      return compare(steps.attention(), expected.a);
    case Step::kScores:
      return compare(steps.scores(), expected.attention);
    case Step::kInverse:
      return compare(steps.inverse(), expected.t);
    case Step::kStateUpdate:
      return compare(tensors.state, expected.final_state);
    default:
      return Worst({compare(steps.updates(), expected.v_new), compare(tensors.rule.output, expected.output)});
  }
}

void AddSteps(std::vector<ParityCase>& cases) {
  const std::vector<ChunkShape> small = {{1, 8, 4}, {4, 8, 8}, {16, 24, 33}};
  const std::vector<ChunkShape> large = {{64, 64, 64}, {64, 128, 40}, {40, 33, 24, -20.0f}, {64, 64, 32, -0.01f}};
  const auto add = [&cases](int phase, const char* test, Step step, const std::vector<ChunkShape>& shapes) {
    for (const ChunkShape& s : shapes) {
      cases.push_back(GpuCase("phases", test,
                              absl::StrCat("C=", s.tokens, " K=", s.key_dim, " V=", s.value_dim, " g>=", s.strongest),
                              kPipelineTolerance, std::bind_front(RunStep, step, s), phase));
    }
  };
  add(5, "attn_matrix_small", Step::kAttention, small);
  add(5, "attn_matrix_64", Step::kAttention, large);
  add(6, "attn_pre_computation", Step::kScores, large);
  add(6, "solve_causal_identity", Step::kInverse, large);
  add(6, "intra_chunk_small", Step::kIntraChunk, small);
  add(6, "intra_chunk", Step::kIntraChunk, large);
  add(7, "state_update", Step::kStateUpdate, large);
  add(7, "output_with_state", Step::kOutputWithState, large);
}

// A sequence of chunks and its tail, against the token-by-token recurrence: outputs and the state left.
CaseResult RunSequence(const LayerDims& dims, int32_t tokens, int64_t chunk, float strongest, Backend& backend,
                       RandomTensor& random) {
  const DeltaRuleProblem problem = RandomDeltaRule(dims, {tokens}, {.strongest = strongest}, random);
  BackendData data(backend);
  GDN_ASSIGN_OR_RETURN(const DeltaRuleTensors tensors, Upload(problem, data));
  GDN_ASSIGN_OR_RETURN(ChunkByPrimitives steps, ChunkByPrimitives::Make(backend, chunk, dims.key_dim, dims.value_dim));
  for (int64_t first = 0; first < tokens; first += chunk) {
    for (int32_t head = 0; head < dims.value_heads; ++head) {
      GDN_RETURN_IF_ERROR(steps.Run(ViewOf(tensors, dims, head, first, std::min(chunk, tokens - first)),
                                    tensors.state + head * int64_t{dims.key_dim} * dims.value_dim,
                                    tensors.rule.output + (first * dims.value_heads + head) * dims.value_dim));
    }
  }
  DeltaRuleResult actual;
  GDN_ASSIGN_OR_RETURN(actual.output, data.Download(tensors.rule.output, static_cast<int64_t>(problem.v.size())));
  GDN_ASSIGN_OR_RETURN(actual.states, data.Download(tensors.state, dims.state_elements()));
  return CompareWithReference(problem, actual);
}

void AddSequences(std::vector<ParityCase>& cases) {
  const auto add = [&cases](const char* test, const LayerDims& dims, int32_t tokens, int64_t chunk,
                            float strongest = -1.0f) {
    cases.push_back(GpuCase("phases", test,
                            absl::StrCat(DimsName(dims), " T=", tokens, " C=", chunk, " g>=", strongest),
                            kPipelineTolerance, std::bind_front(RunSequence, dims, tokens, chunk, strongest),
                            /*phase=*/8));
  };
  const LayerDims one = Dims(1, 1, 64, 64), grouped = Dims(1, 3, 48, 32), odd = Dims(2, 2, 33, 40);
  add("deltanet_single_chunk", one, 64, 64);
  add("deltanet_single_chunk", one, 32, 32);
  add("deltanet_single_chunk", odd, 40, 64, -20.0f);
  add("deltanet_full", one, 128, 64);
  add("deltanet_full", one, 128, 32);
  add("deltanet_full", grouped, 100, 32);
  add("deltanet_full", odd, 65, 16, -0.05f);
}

}  // namespace

void AddChunkByPrimitivesCases(std::vector<ParityCase>& cases) {
  AddSteps(cases);
  AddSequences(cases);
}

}  // namespace gdn::parity
