// Rows of gating.

#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {
namespace {

struct GatingProblem {
  ALogConvention convention = ALogConvention::kRaw;
  int64_t rows = 0;
  int32_t heads = 0;
  float beta_scale = 1.0f;
  float spread = 1.0f;       // of a and b; 100 and more: softplus past its overflow, sigmoid at its ends
  int32_t channels = 1;      // log decays of a head
  float lower_bound = 0.0f;  // below 0: the bounded gate
};

CaseResult RunGating(const GatingProblem& s, Backend& backend, RandomTensor& random) {
  const bool raw = s.convention == ALogConvention::kRaw;
  const Shape gates{s.rows, s.heads};
  Shape decays = gates;
  Shape biases{s.heads};
  if (s.channels > 1) {
    decays.push_back(s.channels);
    biases.push_back(s.channels);
  }
  std::vector<float> a = random.Normal(s.rows * s.heads * s.channels, s.spread);
  std::vector<float> b = random.Normal(s.rows * s.heads, s.spread);
  std::vector<float> a_log = random.Normal(s.heads);
  if (!raw) {
    for (float& rate : a_log) rate = -std::exp(rate);
  }
  return OperatorCall<GatingParams>("gating",
                                    {{"convention", raw ? "raw" : "negative_exp"},
                                     {"beta_scale", absl::StrCat(s.beta_scale)},
                                     {"lower_bound", absl::StrCat(s.lower_bound)}},
                                    {.convention = s.convention,
                                     .gate = s.lower_bound < 0.0f ? DecayGate::kBoundedSigmoid : DecayGate::kSoftplus,
                                     .lower_bound = s.lower_bound,
                                     .beta_scale = s.beta_scale,
                                     .value_heads = s.heads,
                                     .decay_dim = s.channels,
                                     .rows = s.rows})
      .In(&GatingParams::a, "a", decays, std::move(a))
      .In(&GatingParams::b, "b", gates, std::move(b))
      .In(&GatingParams::a_log, "a_log", {s.heads}, std::move(a_log))
      .In(&GatingParams::dt_bias, "dt_bias", biases, random.Normal(s.heads * s.channels))
      .Out(&GatingParams::g, "g", decays)
      .Out(&GatingParams::beta, "beta", gates)
      .Run(backend, GatingReference, &Backend::Gating);
}

}  // namespace

void AddGatingCases(std::vector<ParityCase>& cases) {
  const auto add = [&cases](const char* suite, const char* test, const GatingProblem& s, const std::string& note,
                            double max_tolerance) {
    cases.push_back({suite, test, absl::StrCat("rows=", s.rows, " HV=", s.heads, note), kElementwiseTolerance,
                     std::bind_front(RunGating, s), max_tolerance});
  };
  struct Sweep {
    const char* suite;
    int64_t rows;
    int32_t heads;
    std::vector<float> spreads;
    double max_tolerance;
  };
  const Sweep sweeps[] = {{"layer_ops", 65, 12, {1.0f, 200.0f, 1e4f}, kMaxRelativeTolerance},
                          {"ops", 33, 12, {1.0f, 100.0f}, kElementwiseTolerance},
                          {"shapes", 100, 7, {0.1f, 1.0f, 10.0f, 200.0f, 1e4f}, kMaxRelativeTolerance},
                          {"shapes", 67, 5, {30.0f}, kMaxRelativeTolerance}};
  for (const Sweep& sweep : sweeps) {
    for (const ALogConvention convention : {ALogConvention::kRaw, ALogConvention::kNegativeExp}) {
      for (const float spread : sweep.spreads) {
        add(sweep.suite, convention == ALogConvention::kRaw ? "gating_a_log" : "gating_ssm_a",
            {.convention = convention, .rows = sweep.rows, .heads = sweep.heads, .spread = spread},
            absl::StrCat(" |a|~", spread), sweep.max_tolerance);
      }
    }
  }
  add("shapes", "gating_a_log", {.rows = 67, .heads = 5, .beta_scale = 2.0f, .spread = 30.0f}, " beta to 2",
      kMaxRelativeTolerance);
  for (const ALogConvention convention : {ALogConvention::kRaw, ALogConvention::kNegativeExp}) {
    for (const float lower_bound : {0.0f, -5.0f}) {
      for (const auto& [heads, channels] : {std::pair{3, 32}, std::pair{2, 37}, std::pair{2, 128}, std::pair{4, 1}}) {
        for (const float spread : {0.1f, 1.0f, 10.0f, 200.0f, 1e4f}) {
          add("kda", "gating",
              {.convention = convention,
               .rows = 19,
               .heads = heads,
               .spread = spread,
               .channels = channels,
               .lower_bound = lower_bound},
              absl::StrCat(" K=", channels, convention == ALogConvention::kRaw ? " a_log" : " ssm_a",
                           lower_bound < 0.0f ? absl::StrCat(" bounded by ", lower_bound) : "", " |a|~", spread),
              kMaxRelativeTolerance);
          cases.back().by_channel = true;
        }
      }
    }
  }
  add("parity", "gating_prefill", {.rows = 100, .heads = 12, .spread = 2.0f}, "", kElementwiseTolerance);
}

}  // namespace gdn::parity
