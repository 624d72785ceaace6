// Rows of chunks put together from primitives: the steps of one chunk against the literature's formulas in double, then
// whole sequences of chunks against the recurrence.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/gdn_parity/backend_data.h"
#include "tools/gdn_parity/cases/delta_rule_runner.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/chunk_by_primitives.h"

namespace gdn::parity {
namespace {

struct ChunkShape {
  int64_t tokens;
  int32_t key_dim, value_dim;
  float strongest = -1.0f;  // g is uniform in [strongest, 0]
};

// One head's chunk on the host, and what the literature's formulas make of it in double.
struct ChunkProblem {
  ChunkShape shape;
  std::vector<float> q, k, v, g, beta, state;
  std::vector<double> attention, inverse, scores, updates, output, next_state;
};

std::vector<float> Rounded(const std::vector<double>& values) { return {values.begin(), values.end()}; }

void Solve(ChunkProblem& p) {
  const int64_t c = p.shape.tokens;
  const int64_t key_dim = p.shape.key_dim;
  const int64_t value_dim = p.shape.value_dim;
  std::vector<double> sums(c);
  double sum = 0.0;
  for (int64_t i = 0; i < c; ++i) sums[i] = sum += p.g[i];
  const auto dot = [&](const std::vector<float>& a, int64_t i, const std::vector<float>& b, int64_t j) {
    double value = 0.0;
    for (int64_t l = 0; l < key_dim; ++l) value += double{a[i * key_dim + l]} * double{b[j * key_dim + l]};
    return value;
  };
  // row i of `rows` times the state's column j
  const auto read = [&](const std::vector<float>& rows, int64_t i, int64_t j) {
    double value = 0.0;
    for (int64_t l = 0; l < key_dim; ++l) value += double{rows[i * key_dim + l]} * double{p.state[l * value_dim + j]};
    return value;
  };
  p.attention.assign(c * c, 0.0);
  p.scores.assign(c * c, 0.0);
  for (int64_t i = 0; i < c; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      const double decay = std::exp(sums[i] - sums[j]);
      p.scores[i * c + j] = dot(p.q, i, p.k, j) * decay;
      if (j < i) p.attention[i * c + j] = p.beta[i] * dot(p.k, i, p.k, j) * decay;
    }
  }
  p.inverse.assign(c * c, 0.0);
  for (int64_t i = 0; i < c; ++i) {
    p.inverse[i * c + i] = 1.0;
    for (int64_t j = 0; j < i; ++j) {
      double value = 0.0;
      for (int64_t l = j; l < i; ++l) value -= p.attention[i * c + l] * p.inverse[l * c + j];
      p.inverse[i * c + j] = value;
    }
  }
  // U by substitution, not by the inverse.
  p.updates.assign(c * value_dim, 0.0);
  p.output.assign(c * value_dim, 0.0);
  for (int64_t i = 0; i < c; ++i) {
    for (int64_t j = 0; j < value_dim; ++j) {
      double u = p.beta[i] * (p.v[i * value_dim + j] - std::exp(sums[i]) * read(p.k, i, j));
      for (int64_t l = 0; l < i; ++l) u -= p.attention[i * c + l] * p.updates[l * value_dim + j];
      p.updates[i * value_dim + j] = u;
      double o = std::exp(sums[i]) * read(p.q, i, j);
      for (int64_t l = 0; l <= i; ++l) o += p.scores[i * c + l] * p.updates[l * value_dim + j];
      p.output[i * value_dim + j] = o;
    }
  }
  p.next_state.assign(key_dim * value_dim, 0.0);
  for (int64_t l = 0; l < key_dim; ++l) {
    for (int64_t j = 0; j < value_dim; ++j) {
      double value = std::exp(sum) * p.state[l * value_dim + j];
      for (int64_t i = 0; i < c; ++i) {
        value += std::exp(sum - sums[i]) * p.k[i * key_dim + l] * p.updates[i * value_dim + j];
      }
      p.next_state[l * value_dim + j] = value;
    }
  }
}

ChunkProblem MakeProblem(const ChunkShape& shape, bool with_state, RandomTensor& random) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
  ChunkProblem p;
  p.shape = shape;
  p.q = random.Directions(shape.tokens, shape.key_dim, scale);
  p.k = random.Directions(shape.tokens, shape.key_dim, 1.0f);
  p.v = random.Normal(shape.tokens * shape.value_dim);
  p.g = random.Uniform(shape.tokens, shape.strongest, 0.0f);
  p.beta = random.Uniform(shape.tokens, 0.0f, 1.0f);
  p.state.assign(int64_t{shape.key_dim} * shape.value_dim, 0.0f);
  if (with_state) p.state = random.Normal(int64_t{shape.key_dim} * shape.value_dim);
  Solve(p);
  return p;
}

// A problem on the backend.
struct ChunkOnDevice {
  static absl::StatusOr<ChunkOnDevice> Make(const ChunkProblem& p, BackendData& data) {
    ChunkOnDevice d{.chunk = {.tokens = p.shape.tokens,
                              .key_stride = p.shape.key_dim,
                              .value_stride = p.shape.value_dim,
                              .gate_stride = 1}};
    GDN_ASSIGN_OR_RETURN(d.chunk.q, data.Upload(p.q));
    GDN_ASSIGN_OR_RETURN(d.chunk.k, data.Upload(p.k));
    GDN_ASSIGN_OR_RETURN(d.chunk.v, data.Upload(p.v));
    GDN_ASSIGN_OR_RETURN(d.chunk.g, data.Upload(p.g));
    GDN_ASSIGN_OR_RETURN(d.chunk.beta, data.Upload(p.beta));
    GDN_ASSIGN_OR_RETURN(d.state, data.Upload(p.state));
    GDN_ASSIGN_OR_RETURN(d.output, data.Poisoned(static_cast<int64_t>(p.v.size())));
    return d;
  }

  ChunkView chunk;
  float* state = nullptr;
  float* output = nullptr;
};

// The steps up to the one of interest, and what of them is compared.
enum class Step { kAttention, kScores, kInverse, kIntraChunk, kStateUpdate, kOutputWithState };

CaseResult RunStep(Step step, const ChunkShape& shape, Backend& backend, RandomTensor& random) {
  BackendData data(backend);
  const bool with_state = step == Step::kStateUpdate || step == Step::kOutputWithState;
  const ChunkProblem p = MakeProblem(shape, with_state, random);
  GDN_ASSIGN_OR_RETURN(const ChunkOnDevice d, ChunkOnDevice::Make(p, data));
  GDN_ASSIGN_OR_RETURN(ChunkByPrimitives steps,
                       ChunkByPrimitives::Make(backend, shape.tokens, shape.key_dim, shape.value_dim));
  const auto compare = [&data](const float* device, const std::vector<double>& expected) -> CaseResult {
    GDN_ASSIGN_OR_RETURN(const std::vector<float> actual, data.Download(device, static_cast<int64_t>(expected.size())));
    return Compare(actual, Rounded(expected));
  };
  GDN_RETURN_IF_ERROR(steps.DecayMask(d.chunk));
  GDN_RETURN_IF_ERROR(steps.AttentionMatrix(d.chunk));
  if (step == Step::kAttention) return compare(steps.attention(), p.attention);
  GDN_RETURN_IF_ERROR(steps.Scores(d.chunk));
  if (step == Step::kScores) return compare(steps.scores(), p.scores);
  GDN_RETURN_IF_ERROR(steps.Inverse(d.chunk));
  if (step == Step::kInverse) return compare(steps.inverse(), p.inverse);
  const float* state = with_state ? d.state : nullptr;
  GDN_RETURN_IF_ERROR(steps.Updates(d.chunk, state));
  if (step == Step::kStateUpdate) {
    GDN_RETURN_IF_ERROR(steps.UpdateState(d.chunk, d.state));
    return compare(d.state, p.next_state);
  }
  GDN_RETURN_IF_ERROR(steps.OutputWithState(d.chunk, state, d.output));
  GDN_ASSIGN_OR_RETURN(Difference difference, compare(steps.updates(), p.updates));
  GDN_ASSIGN_OR_RETURN(const Difference of_output, compare(d.output, p.output));
  difference.Merge(of_output);
  return difference;
}

std::string ShapeName(const ChunkShape& shape) {
  return absl::StrCat("C=", shape.tokens, " K=", shape.key_dim, " V=", shape.value_dim, " g>=", shape.strongest);
}

void AddSteps(std::vector<ParityCase>& cases) {
  const std::vector<ChunkShape> small = {{1, 8, 4}, {4, 8, 8}, {16, 24, 33}};
  const std::vector<ChunkShape> large = {{64, 64, 64}, {64, 128, 40}, {40, 33, 24, -20.0f}, {64, 64, 32, -0.01f}};
  const auto add = [&cases](int phase, const char* test, Step step, const std::vector<ChunkShape>& shapes) {
    for (const ChunkShape& shape : shapes) {
      cases.push_back(GpuCase(
          "phases", test, ShapeName(shape), kPipelineTolerance,
          [=](Backend& backend, RandomTensor& random) { return RunStep(step, shape, backend, random); }, phase));
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

struct SequenceShape {
  LayerDims dims;
  int32_t tokens;
  int64_t chunk;
  float strongest = -1.0f;
};

// A sequence of chunks and its tail, against the token-by-token recurrence: outputs and the state left.
CaseResult RunSequence(const SequenceShape& shape, Backend& backend, RandomTensor& random) {
  const LayerDims& dims = shape.dims;
  const int64_t tokens = shape.tokens;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dims.key_dim));
  DeltaRuleProblem problem{.dims = dims, .lengths = {shape.tokens}};
  problem.q = random.Directions(tokens * dims.key_heads, dims.key_dim, scale);
  problem.k = random.Directions(tokens * dims.key_heads, dims.key_dim, 1.0f);
  problem.v = random.Normal(tokens * dims.value_features());
  problem.g = random.Uniform(tokens * dims.value_heads, shape.strongest, 0.0f);
  problem.beta = random.Uniform(tokens * dims.value_heads, 0.0f, 1.0f);
  problem.initial = random.Normal(dims.state_elements(), 0.5f);
  const DeltaRuleResult expected = DeltaRuleReferenceResult(problem);

  BackendData data(backend);
  GDN_ASSIGN_OR_RETURN(const float* q, data.Upload(problem.q));
  GDN_ASSIGN_OR_RETURN(const float* k, data.Upload(problem.k));
  GDN_ASSIGN_OR_RETURN(const float* v, data.Upload(problem.v));
  GDN_ASSIGN_OR_RETURN(const float* g, data.Upload(problem.g));
  GDN_ASSIGN_OR_RETURN(const float* beta, data.Upload(problem.beta));
  GDN_ASSIGN_OR_RETURN(float* state, data.Upload(problem.initial));
  GDN_ASSIGN_OR_RETURN(float* output, data.Poisoned(static_cast<int64_t>(problem.v.size())));
  GDN_ASSIGN_OR_RETURN(ChunkByPrimitives steps,
                       ChunkByPrimitives::Make(backend, shape.chunk, dims.key_dim, dims.value_dim));
  for (int64_t first = 0; first < tokens; first += shape.chunk) {
    for (int32_t head = 0; head < dims.value_heads; ++head) {
      const int64_t key = first * dims.key_features() + head / dims.group() * int64_t{dims.key_dim};
      const int64_t value = first * dims.value_features() + head * int64_t{dims.value_dim};
      const int64_t gate = first * dims.value_heads + head;
      const ChunkView chunk{.tokens = std::min(shape.chunk, tokens - first),
                            .q = q + key,
                            .k = k + key,
                            .key_stride = dims.key_features(),
                            .v = v + value,
                            .value_stride = dims.value_features(),
                            .g = g + gate,
                            .beta = beta + gate,
                            .gate_stride = dims.value_heads};
      GDN_RETURN_IF_ERROR(steps.Run(chunk, state + head * int64_t{dims.key_dim} * dims.value_dim, output + value));
    }
  }
  DeltaRuleResult actual;
  GDN_ASSIGN_OR_RETURN(actual.output, data.Download(output, static_cast<int64_t>(problem.v.size())));
  GDN_ASSIGN_OR_RETURN(actual.states, data.Download(state, dims.state_elements()));
  GDN_RETURN_IF_ERROR(DumpDeltaRule(problem, actual));
  return Worst({Compare(actual.output, expected.output), Compare(actual.states, expected.states)});
}

void AddSequences(std::vector<ParityCase>& cases) {
  const LayerDims one{.key_heads = 1, .value_heads = 1, .key_dim = 64, .value_dim = 64};
  const LayerDims grouped{.key_heads = 1, .value_heads = 3, .key_dim = 48, .value_dim = 32};
  const LayerDims odd{.key_heads = 2, .value_heads = 2, .key_dim = 33, .value_dim = 40};
  const auto add = [&cases](const char* test, const SequenceShape& shape) {
    cases.push_back(GpuCase(
        "phases", test,
        absl::StrCat("H=", shape.dims.key_heads, " HV=", shape.dims.value_heads, " K=", shape.dims.key_dim,
                     " V=", shape.dims.value_dim, " T=", shape.tokens, " C=", shape.chunk, " g>=", shape.strongest),
        kPipelineTolerance, [=](Backend& backend, RandomTensor& random) { return RunSequence(shape, backend, random); },
        /*phase=*/8));
  };
  add("deltanet_single_chunk", {one, 64, 64});
  add("deltanet_single_chunk", {one, 32, 32});
  add("deltanet_single_chunk", {odd, 40, 64, -20.0f});
  add("deltanet_full", {one, 128, 64});
  add("deltanet_full", {one, 128, 32});
  add("deltanet_full", {grouped, 100, 32});
  add("deltanet_full", {odd, 65, 16, -0.05f});
}

}  // namespace

void AddChunkByPrimitivesCases(std::vector<ParityCase>& cases) {
  AddSteps(cases);
  AddSequences(cases);
}

}  // namespace gdn::parity
