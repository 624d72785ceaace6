// Rows of gated_rmsnorm.

#include <functional>

#include "absl/strings/str_cat.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {
namespace {

struct RmsnormProblem {
  GateActivation gate = GateActivation::kSilu;
  int64_t rows = 0;
  int32_t value_dim = 0;
  float spread = 1.0f;     // of the gate
  bool in_place = false;   // y over x
  bool far_apart = false;  // the first row 1e25 times the others, and a gate whose e^-z is not a float32
  float epsilon = 1e-6f;
};

CaseResult RunGatedRmsnorm(const RmsnormProblem& s, Backend& backend, RandomTensor& random) {
  using Params = GatedRmsNormParams;
  const Shape shape{s.rows, s.value_dim};
  std::vector<float> x = random.Normal(s.rows * s.value_dim);
  std::vector<float> z = random.Normal(s.rows * s.value_dim, s.spread);
  if (s.far_apart) {
    for (int32_t i = 0; i < s.value_dim; ++i) x[i] *= 1e25f;
    z[s.value_dim] = -200.0f;
  }
  return OperatorCall<Params>("", {}, {.gate = s.gate, .value_dim = s.value_dim, .rows = s.rows, .epsilon = s.epsilon})
      .In(&Params::z, "z", shape, std::move(z))
      .In(&Params::weight, "weight", {s.value_dim}, random.Normal(s.value_dim))
      .InPlaceIf(s.in_place, &Params::x, &Params::y, "x", "y", shape, std::move(x))
      .Run(backend, GatedRmsNormReference, &Backend::GatedRmsNorm);
}

}  // namespace

void AddGatedRmsNormCases(std::vector<ParityCase>& cases) {
  const auto add = [&cases](const char* suite, const RmsnormProblem& s) {
    cases.push_back({suite, "gated_rmsnorm",
                     absl::StrCat("rows=", s.rows, " V=", s.value_dim, " |z|~", s.spread,
                                  s.gate == GateActivation::kSigmoid ? " sigmoid" : "", s.in_place ? " in place" : ""),
                     kElementwiseTolerance, std::bind_front(RunGatedRmsnorm, s)});
  };
  for (const int32_t dim : {16, 100, 128}) {
    for (const float spread : {1.0f, 100.0f}) add("layer_ops", {.rows = 77, .value_dim = dim, .spread = spread});
  }
  for (const int32_t dim : {17, 128, 257}) {
    for (const float spread : {1.0f, 1000.0f}) {
      add("shapes", {.gate = GateActivation::kSigmoid, .rows = 53, .value_dim = dim, .spread = spread});
    }
  }
  // Every tail of a vector, and lanes that are full or not.
  for (const int32_t dim : {1, 3, 8, 15, 16, 17, 24, 33, 48, 100, 128, 132, 257}) {
    for (const float spread : {1.0f, 30.0f, 1000.0f}) {
      add("shapes", {.rows = 53, .value_dim = dim, .spread = spread, .epsilon = 1e-5f});
    }
    add("shapes",
        {.rows = 37, .value_dim = dim, .spread = 5.0f, .in_place = true, .far_apart = true, .epsilon = 1e-5f});
  }
}

}  // namespace gdn::parity
