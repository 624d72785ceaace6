// Rows of qk_l2norm.

#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {
namespace {

using Params = QkL2NormParams;

// q and k of tensors of their own, k so short that the epsilon shows.
CaseResult RunApart(int64_t rows, int32_t heads, int32_t dim, Backend& backend, RandomTensor& random) {
  const int64_t features = int64_t{heads} * dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const Shape shape{rows, heads, dim};
  std::vector<float> q = random.Normal(rows * features);
  return OperatorCall<Params>("qk_l2norm", {{"scale", absl::StrFormat("%.9g", scale)}},
                              {.key_heads = heads, .key_dim = dim, .rows = rows, .scale = scale, .in_stride = features})
      .In(&Params::q, "q", shape, std::move(q))
      .In(&Params::k, "k", shape, random.Normal(rows * features, 1e-3f))
      .Out(&Params::q_out, "q", shape)
      .Out(&Params::k_out, "k", shape)
      .Run(backend, QkL2NormReference, &Backend::QkL2Norm);
}

// Rows hold q, k and then something else, as mixed_qkv does. Norms go from near 1e-3, where the epsilon shows, up to 1.
CaseResult RunMixed(int64_t rows, int32_t dim, bool normalize, Backend& backend, RandomTensor& random) {
  constexpr int32_t kHeads = 3;
  const int64_t stride = 2 * kHeads * dim + 11;
  const Shape shape{rows, kHeads, dim};
  std::vector<float> x = random.Normal(rows * stride);
  for (int64_t i = 0; i < rows * stride; ++i) x[i] *= std::pow(10.0f, -static_cast<float>(i / stride % 5));
  const auto with_k = [=](Params params) {
    params.k = params.q + kHeads * dim;
    return params;
  };
  return OperatorCall<Params>("", {},
                              {.key_heads = kHeads,
                               .key_dim = dim,
                               .rows = rows,
                               .normalize = normalize,
                               .scale = 0.25f,
                               .in_stride = stride})
      .In(&Params::q, "x", {rows, stride}, std::move(x))
      .Out(&Params::q_out, "q", shape)
      .Out(&Params::k_out, "k", shape)
      .Run(
          backend, [&](const Params& params) { QkL2NormReference(with_k(params)); },
          [&](Backend& on, const Params& params) { return on.QkL2Norm(with_k(params)); });
}

}  // namespace

void AddQkL2NormCases(std::vector<ParityCase>& cases) {
  const auto add = [&cases](const char* suite, int64_t rows, int32_t dim) {
    for (const bool normalize : {true, false}) {
      cases.push_back({suite, normalize ? "qk_l2norm" : "qk_scale", absl::StrCat("rows=", rows, " H=3 K=", dim),
                       kElementwiseTolerance, std::bind_front(RunMixed, rows, dim, normalize)});
    }
  };
  for (const int32_t dim : {16, 100, 128}) add("layer_ops", 29, dim);
  // Every tail of a vector, and lanes that are full or not.
  for (const int32_t dim : {1, 2, 7, 8, 15, 16, 17, 24, 31, 33, 64, 100, 128, 132, 256, 257}) add("shapes", 41, dim);
  cases.push_back({"parity", "l2_normalise", "rows=29 H=3 K=128", kElementwiseTolerance,
                   std::bind_front(RunApart, 29, 3, 128), kElementwiseTolerance});
}

}  // namespace gdn::parity
