// Rows of sigmoid_gating_recurrent: from raw q, k, a and b to the step's output and state, on the backend throughout.

#include <cmath>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/primitives/sigmoid_gating_recurrent/sigmoid_gating_recurrent.h"
#include "tools/gdn_parity/cases/delta_rule_runner.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_row.h"

namespace gdn::parity {
namespace {

using RecurrentParams = SigmoidGatingRecurrentParams;

// Gates and step are one launch on a GPU; elsewhere they are the two operators it stands for.
absl::Status Launch(RecurrentParams params, const OwnedBatch& batch, OperatorRow& row) {
  Backend& backend = row.data().backend();
  const absl::StatusOr<gpu::Stream> stream = GpuStreamOf(backend);
  if (stream.ok()) {
    GDN_ASSIGN_OR_RETURN(const int32_t* cu_seqlens, row.data().Upload(batch.cu_seqlens));
    GDN_ASSIGN_OR_RETURN(const int32_t* slots, row.data().Upload(batch.slots));
    return SigmoidGatingRecurrentGpu(params,
                                     {.sequences = batch.view().sequences,
                                      .tokens = batch.tokens(),
                                      .max_length = batch.tokens(),
                                      .cu_seqlens = cu_seqlens,
                                      .slots = slots},
                                     *stream);
  }
  const int32_t heads = params.rule.pool.layout.dims().value_heads;
  GDN_ASSIGN_OR_RETURN(float* g, row.data().Poisoned(int64_t{batch.tokens()} * heads));
  GDN_ASSIGN_OR_RETURN(float* beta, row.data().Poisoned(int64_t{batch.tokens()} * heads));
  GDN_RETURN_IF_ERROR(backend.Gating({.convention = params.convention,
                                      .value_heads = heads,
                                      .rows = batch.tokens(),
                                      .a = params.a,
                                      .b = params.b,
                                      .a_log = params.a_log,
                                      .dt_bias = params.dt_bias,
                                      .g = g,
                                      .beta = beta}));
  params.rule.g = g;
  params.rule.beta = beta;
  return backend.DeltaRuleScan(params.rule);
}

absl::StatusOr<Difference> RunSigmoidGatingRecurrent(const LayerDims& dims, const std::vector<int32_t>& lengths,
                                                     ALogConvention convention, Backend& backend,
                                                     RandomTensor& random) {
  const OwnedBatch batch(lengths);
  const int64_t tokens = batch.tokens(), heads = dims.value_heads, sequences = batch.view().sequences;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dims.key_dim));
  const bool raw = convention == ALogConvention::kRaw;
  OperatorRow row(backend, raw ? "sigmoid_gating_recurrent" : "", {{"scale", absl::StrFormat("%.9g", scale)}});
  const std::vector<float> q = random.Normal(tokens * dims.key_features());
  const std::vector<float> k = random.Normal(tokens * dims.key_features());
  const std::vector<float> v = random.Normal(tokens * dims.value_features());
  const std::vector<float> initial = random.Normal(sequences * dims.state_elements(), 0.5f);
  const std::vector<float> a = random.Normal(tokens * heads, 2.0f), b = random.Normal(tokens * heads, 2.0f);
  std::vector<float> a_log = random.Normal(heads);
  const std::vector<float> dt_bias = random.Normal(heads);
  if (!raw) {
    for (float& rate : a_log) rate = -std::exp(rate);
  }
  GDN_ASSIGN_OR_RETURN(StatePair state,
                       StatePair::Make(backend, dims, static_cast<int32_t>(sequences), /*max_draft=*/1));
  GDN_RETURN_IF_ERROR(state.WriteBases(initial));

  std::vector<float> q_norm(q.size()), k_norm(k.size()), output(v.size());
  QkL2NormParams norm{.key_heads = dims.key_heads,
                      .key_dim = dims.key_dim,
                      .rows = tokens,
                      .scale = scale,
                      .q = q.data(),
                      .k = k.data(),
                      .in_stride = dims.key_features(),
                      .q_out = q_norm.data(),
                      .k_out = k_norm.data()};
  RecurrentParams params{.rule = {.pool = state.host(),
                                  .batch = batch.view(),
                                  .q = q_norm.data(),
                                  .k = k_norm.data(),
                                  .v = v.data(),
                                  .q_stride = dims.key_features(),
                                  .k_stride = dims.key_features(),
                                  .v_stride = dims.value_features(),
                                  .output = output.data()},
                         .convention = convention,
                         .a = a.data(),
                         .b = b.data(),
                         .a_log = a_log.data(),
                         .dt_bias = dt_bias.data()};
  QkL2NormReference(norm);
  SigmoidGatingRecurrentReference(params);

  const std::vector<int64_t> keys{tokens, dims.key_heads, dims.key_dim};
  const std::vector<int64_t> values{tokens, heads, dims.value_dim};
  const std::vector<int64_t> states{sequences, heads, dims.key_dim, dims.value_dim};
  GDN_ASSIGN_OR_RETURN(norm.q, row.In("q", keys, q));
  GDN_ASSIGN_OR_RETURN(norm.k, row.In("k", keys, k));
  GDN_ASSIGN_OR_RETURN(norm.q_out, row.data().Poisoned(static_cast<int64_t>(q.size())));
  GDN_ASSIGN_OR_RETURN(norm.k_out, row.data().Poisoned(static_cast<int64_t>(k.size())));
  GDN_ASSIGN_OR_RETURN(params.a, row.In("a", {tokens, heads}, a));
  GDN_ASSIGN_OR_RETURN(params.b, row.In("b", {tokens, heads}, b));
  GDN_ASSIGN_OR_RETURN(params.a_log, row.In("a_log", {heads}, a_log));
  GDN_ASSIGN_OR_RETURN(params.dt_bias, row.In("dt_bias", {heads}, dt_bias));
  params.rule.pool = state.device();
  params.rule.q = norm.q_out;
  params.rule.k = norm.k_out;
  GDN_ASSIGN_OR_RETURN(params.rule.v, row.In("v", values, v));
  GDN_ASSIGN_OR_RETURN(params.rule.output, row.Out("output", values, output));
  row.Given("initial_state", states, initial);
  row.Given("cu_seqlens", {sequences + 1}, {batch.cu_seqlens.begin(), batch.cu_seqlens.end()});
  GDN_RETURN_IF_ERROR(backend.QkL2Norm(norm));
  GDN_RETURN_IF_ERROR(Launch(params, batch, row));

  GDN_ASSIGN_OR_RETURN(const OutputPair bases, state.ReadBases(static_cast<int32_t>(sequences)));
  row.Result("final_state", states, bases.actual, bases.expected);
  return row.Finish();
}

}  // namespace

void AddSigmoidGatingRecurrentCases(std::vector<ParityCase>& cases) {
  const auto add = [&cases](const char* suite, const LayerDims& dims, const std::vector<int32_t>& lengths,
                            ALogConvention convention, const std::string& name) {
    cases.push_back({suite, "sigmoid_gating_recurrent", absl::StrCat(DimsName(dims), " T=", name), kPipelineTolerance,
                     std::bind_front(RunSigmoidGatingRecurrent, dims, lengths, convention)});
  };
  add("parity", Dims(2, 4, 64, 40), {1, 1, 1, 1, 1}, ALogConvention::kRaw, "1 x5");
  for (const LayerDims& dims : {Dims(2, 4, 32, 48), Dims(1, 3, 33, 17), Dims(1, 2, 128, 128)}) {
    add("shapes", dims, {1, 5, 0}, ALogConvention::kRaw, "1,5,0");
    add("shapes", dims, {1, 5, 0}, ALogConvention::kNegativeExp, "1,5,0 ssm_a");
  }
}

}  // namespace gdn::parity
