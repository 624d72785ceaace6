// Rows of sigmoid_gating_recurrent: from raw q, k, a and b to the step's output and state, on the backend throughout.

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/primitives/sigmoid_gating_recurrent/sigmoid_gating_recurrent.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_row.h"

namespace gdn::parity {
namespace {

using Params = SigmoidGatingRecurrentParams;

// Gates and step are one launch on a GPU; elsewhere they are the two operators it stands for.
absl::Status Launch(Params params, const OwnedBatch& batch, OperatorRow& row) {
  Backend& backend = row.data().backend();
  const absl::StatusOr<gpu::Stream> stream = GpuStreamOf(backend);
  const std::vector<int32_t>& starts = batch.cu_seqlens;
  if (stream.ok()) {
    GDN_ASSIGN_OR_RETURN(const void* cu_seqlens,
                         row.data().UploadBytes(starts.data(), starts.size() * sizeof(int32_t)));
    GDN_ASSIGN_OR_RETURN(const void* slots,
                         row.data().UploadBytes(batch.slots.data(), batch.slots.size() * sizeof(int32_t)));
    return SigmoidGatingRecurrentGpu(params,
                                     {.sequences = batch.view().sequences,
                                      .tokens = batch.tokens(),
                                      .max_length = batch.tokens(),
                                      .cu_seqlens = static_cast<const int32_t*>(cu_seqlens),
                                      .slots = static_cast<const int32_t*>(slots)},
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

absl::StatusOr<Difference> Run(const LayerDims& dims, const std::vector<int32_t>& lengths, ALogConvention convention,
                               Backend& backend, RandomTensor& random) {
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
  for (int32_t i = 0; i < sequences; ++i) {
    SlotImage image;
    const auto begin = initial.begin() + i * dims.state_elements();
    image.base.assign(begin, begin + dims.state_elements());
    GDN_RETURN_IF_ERROR(state.Write(i, 0, image));
  }

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
  Params params{.rule = {.pool = state.host(),
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

  std::vector<float> actual_states, expected_states;
  for (int32_t i = 0; i < sequences; ++i) {
    GDN_ASSIGN_OR_RETURN(const SlotImage actual, ReadSlot(backend, state.device(), i, /*log_length=*/0, 0));
    GDN_ASSIGN_OR_RETURN(const SlotImage expected, ReadHostSlot(state.host(), i, /*log_length=*/0, 0));
    actual_states.insert(actual_states.end(), actual.base.begin(), actual.base.end());
    expected_states.insert(expected_states.end(), expected.base.begin(), expected.base.end());
  }
  row.Result("final_state", states, actual_states, expected_states);
  return row.Finish();
}

}  // namespace

void AddSigmoidGatingRecurrentCases(std::vector<ParityCase>& cases) {
  const auto add = [&cases](const char* suite, const LayerDims& dims, const std::vector<int32_t>& lengths,
                            ALogConvention convention, const std::string& name) {
    cases.push_back({suite, "sigmoid_gating_recurrent",
                     absl::StrCat("H=", dims.key_heads, " HV=", dims.value_heads, " K=", dims.key_dim,
                                  " V=", dims.value_dim, " T=", name),
                     kPipelineTolerance, [=](Backend& backend, RandomTensor& random) {
                       return Run(dims, lengths, convention, backend, random);
                     }});
  };
  add("parity", {2, 4, 64, 40, 0, 0}, {1, 1, 1, 1, 1}, ALogConvention::kRaw, "1 x5");
  for (const LayerDims& dims :
       {LayerDims{2, 4, 32, 48, 0, 0}, LayerDims{1, 3, 33, 17, 0, 0}, LayerDims{1, 2, 128, 128, 0, 0}}) {
    add("shapes", dims, {1, 5, 0}, ALogConvention::kRaw, "1,5,0");
    add("shapes", dims, {1, 5, 0}, ALogConvention::kNegativeExp, "1,5,0 ssm_a");
  }
}

}  // namespace gdn::parity
