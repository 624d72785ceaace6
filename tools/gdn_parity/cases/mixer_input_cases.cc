// Rows of MixerInput where the inputs come split: the convolution, q and k, and the gates in one call, against the
// references of these one by one.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "tools/gdn_parity/backend_data.h"
#include "tools/gdn_parity/cases/delta_rule_runner.h"
#include "tools/gdn_parity/cases/operator_cases.h"

namespace gdn::parity {
namespace {

constexpr int32_t kInputDraft = 8;

struct MixerProblem {
  LayerDims dims;
  std::vector<int32_t> lengths;
  float lower_bound = 0.0f;  // below 0: the bounded gate
};

// What the delta rule reads.
struct Mixed {
  std::vector<float> v, q, k, g, beta;
};

MixerInputParams InputParams(const MixerProblem& s) {
  return {.decay_gate = s.lower_bound < 0.0f ? DecayGate::kBoundedSigmoid : DecayGate::kSoftplus,
          .decay_lower_bound = s.lower_bound,
          .beta_scale = 1.0f,
          .scale = 0.25f};
}

// Of [tokens, C] the columns of v.
std::vector<float> ValuesOf(const std::vector<float>& convolved, const LayerDims& dims) {
  std::vector<float> v;
  for (auto row = convolved.begin(); row != convolved.end(); row += dims.conv_channels()) {
    v.insert(v.end(), row + 2 * dims.key_features(), row + dims.conv_channels());
  }
  return v;
}

Mixed Reference(const MixerInputParams& p) {
  const LayerDims& dims = p.pool.layout.dims();
  const int64_t tokens = p.batch.tokens();
  std::vector<float> convolved(tokens * dims.conv_channels());
  Mixed out{.v = {},
            .q = std::vector<float>(tokens * dims.key_features()),
            .k = std::vector<float>(tokens * dims.key_features()),
            .g = std::vector<float>(tokens * dims.decay_features()),
            .beta = std::vector<float>(tokens * dims.value_heads)};
  CausalConv1dReference({.pool = p.pool,
                         .batch = p.batch,
                         .token_counts = p.token_counts,
                         .x = p.mixed_qkv,
                         .weight = p.conv_weight,
                         .y = convolved.data()});
  GatingReference({.gate = p.decay_gate,
                   .lower_bound = p.decay_lower_bound,
                   .beta_scale = p.beta_scale,
                   .value_heads = dims.value_heads,
                   .decay_dim = dims.decay_dim(),
                   .rows = tokens,
                   .a = p.a,
                   .b = p.b,
                   .a_log = p.a_log,
                   .dt_bias = p.dt_bias,
                   .g = out.g.data(),
                   .beta = out.beta.data()});
  QkL2NormReference({.key_heads = dims.key_heads,
                     .key_dim = dims.key_dim,
                     .rows = tokens,
                     .scale = p.scale,
                     .q = convolved.data(),
                     .k = convolved.data() + dims.key_features(),
                     .in_stride = dims.conv_channels(),
                     .q_out = out.q.data(),
                     .k_out = out.k.data()});
  out.v = ValuesOf(convolved, dims);
  return out;
}

CaseResult RunMixerInput(const MixerProblem& s, Backend& backend, RandomTensor& random) {
  const LayerDims& dims = s.dims;
  const OwnedBatch batch(s.lengths);
  const int64_t tokens = batch.tokens();
  const int32_t sequences = static_cast<int32_t>(s.lengths.size());
  const std::vector<int64_t> counts(sequences, 5);
  GDN_ASSIGN_OR_RETURN(StatePair state, StatePair::Make(backend, dims, sequences, kInputDraft));
  for (int32_t i = 0; i < sequences; ++i) {
    GDN_RETURN_IF_ERROR(state.Write(i, counts[i],
                                    {.base = std::vector<float>(dims.state_elements()),
                                     .conv = random.Normal(dims.conv_channels() * (dims.conv_width - 1))}));
  }
  const std::vector<float> mixed_qkv = random.Normal(tokens * dims.conv_channels());
  const std::vector<float> b = random.Normal(tokens * dims.value_heads);
  const std::vector<float> a = random.Normal(tokens * dims.decay_features(), 2.0f);
  const std::vector<float> weight = random.Normal(dims.conv_channels() * dims.conv_width);
  const std::vector<float> a_log = random.Normal(dims.value_heads);
  const std::vector<float> dt_bias = random.Normal(dims.decay_features());

  MixerInputParams p = InputParams(s);
  p.pool = state.host();
  p.batch = batch.view();
  p.token_counts = counts.data();
  p.mixed_qkv = mixed_qkv.data();
  p.b = b.data();
  p.a = a.data();
  p.conv_weight = weight.data();
  p.a_log = a_log.data();
  p.dt_bias = dt_bias.data();
  const Mixed expected = Reference(p);

  BackendData data(backend);
  p.pool = state.device();
  GDN_ASSIGN_OR_RETURN(p.mixed_qkv, data.Upload(mixed_qkv));
  GDN_ASSIGN_OR_RETURN(p.b, data.Upload(b));
  GDN_ASSIGN_OR_RETURN(p.a, data.Upload(a));
  GDN_ASSIGN_OR_RETURN(p.conv_weight, data.Upload(weight));
  GDN_ASSIGN_OR_RETURN(p.a_log, data.Upload(a_log));
  GDN_ASSIGN_OR_RETURN(p.dt_bias, data.Upload(dt_bias));
  GDN_ASSIGN_OR_RETURN(p.convolved, data.Poisoned(tokens * dims.conv_channels()));
  GDN_ASSIGN_OR_RETURN(p.q, data.Poisoned(static_cast<int64_t>(expected.q.size())));
  GDN_ASSIGN_OR_RETURN(p.k, data.Poisoned(static_cast<int64_t>(expected.k.size())));
  GDN_ASSIGN_OR_RETURN(p.g, data.Poisoned(static_cast<int64_t>(expected.g.size())));
  GDN_ASSIGN_OR_RETURN(p.beta, data.Poisoned(static_cast<int64_t>(expected.beta.size())));
  GDN_RETURN_IF_ERROR(backend.MixerInput(p));

  GDN_ASSIGN_OR_RETURN(const std::vector<float> convolved, data.Download(p.convolved, tokens * dims.conv_channels()));
  Difference difference = Compare(ValuesOf(convolved, dims), expected.v);
  for (const auto& [device, of_reference] : {std::pair(p.q, &expected.q), std::pair(p.k, &expected.k),
                                             std::pair(p.g, &expected.g), std::pair(p.beta, &expected.beta)}) {
    GDN_ASSIGN_OR_RETURN(const std::vector<float> actual,
                         data.Download(device, static_cast<int64_t>(of_reference->size())));
    difference.Merge(Compare(actual, *of_reference));
  }
  for (int32_t i = 0; i < sequences; ++i) {
    GDN_ASSIGN_OR_RETURN(const Difference of_slot, state.CompareSlot(i, counts[i] + s.lengths[i]));
    difference.Merge(of_slot);
  }
  return difference;
}

}  // namespace

void AddMixerInputCases(std::vector<ParityCase>& cases) {
  const LayerDims shapes[] = {
      {3, 3, 32, 32, 4, 64}, {2, 4, 24, 40, 3, 8}, {2, 2, 128, 128, 4, 64}, {1, 3, 37, 20, 2, 8}};
  for (const LayerDims& shape : shapes) {
    for (const DecayKind decay : {DecayKind::kPerHead, DecayKind::kPerChannel}) {
      for (const float lower_bound : {0.0f, -5.0f}) {
        for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{1, 1, 1}, std::vector<int32_t>{9, 0, 1, 40}}) {
          MixerProblem problem{.dims = shape, .lengths = lengths, .lower_bound = lower_bound};
          problem.dims.decay = decay;
          const bool by_channel = problem.dims.decays_by_channel();
          if (!by_channel && lower_bound < 0.0f) continue;  // no family has it
          cases.push_back({by_channel ? "kda" : "layer_ops", "mixer_input",
                           absl::StrCat(DimsName(problem.dims), " W=", shape.conv_width,
                                        " T=", absl::StrJoin(lengths, ","), lower_bound < 0.0f ? " bounded" : ""),
                           kElementwiseTolerance, std::bind_front(RunMixerInput, problem)});
          cases.back().by_channel = by_channel;
        }
      }
    }
  }
}

}  // namespace gdn::parity
