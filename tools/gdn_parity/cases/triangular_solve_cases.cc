// Rows of the unit lower triangular inverse and the causal solve.

#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/primitives/triangular_solve/triangular_solve.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {
namespace {

// `count` matrices of which only the strictly lower part may be read: NaN elsewhere.
std::vector<float> StrictlyLower(int32_t size, std::vector<float> a) {
  for (int64_t at = 0; at < static_cast<int64_t>(a.size()); ++at) {
    if (at % size >= at / size % size) a[at] = std::numeric_limits<float>::quiet_NaN();
  }
  return a;
}

CaseResult RunInverse(int64_t batch, int32_t size, std::vector<float> a, bool in_place, Backend& backend) {
  using P = UnitLowerInverseParams;
  return OperatorCall<P>("unit_lower_inverse", {}, {.batch = batch, .size = size})
      .InPlaceIf(in_place, &P::a, &P::inverse, "a", "a", {batch, size, size}, std::move(a))
      .Run(backend, UnitLowerInverseReference, UnitLowerInverseGpu);
}

CaseResult RunSolve(const CausalSolveParams& sizes, std::vector<float> a, std::vector<float> b, bool in_place,
                    Backend& backend) {
  using P = CausalSolveParams;
  return OperatorCall<P>("causal_solve", {}, sizes)
      .In(&P::a, "a", {sizes.batch, sizes.size, sizes.size}, std::move(a))
      .InPlaceIf(in_place, &P::b, &P::x, "b", "x", {sizes.batch, sizes.size, sizes.columns}, std::move(b))
      .Run(backend, CausalSolveReference, CausalSolveGpu);
}

// (I + A)^-1 and X of (I - A) X = B.
CaseResult RunBothTriangularSolve(int32_t size, Backend& backend, RandomTensor& random) {
  constexpr int64_t kBatch = 5;
  constexpr int32_t kColumns = 40;
  // What correlated keys give: every entry of one sign.
  const std::vector<float> a = random.Uniform(kBatch * size * size, 0.0f, 1.0f);
  const std::vector<float> b = random.Normal(kBatch * size * kColumns);
  // Small entries: with the sign turned, X grows as a product of (1 + |a|).
  std::vector<float> small = a;
  for (float& value : small) value *= 1.0f / static_cast<float>(size);
  return Worst({RunInverse(kBatch, size, a, /*in_place=*/false, backend),
                RunSolve({.batch = kBatch, .size = size, .columns = kColumns}, small, b, /*in_place=*/false, backend)});
}

// A solve with normal A and B; in place too where `in_place` says so.
CaseRunner Solver(int64_t batch, int32_t size, int32_t columns, bool in_place) {
  return [=](Backend& backend, RandomTensor& random) {
    const CausalSolveParams sizes{.batch = batch, .size = size, .columns = columns};
    const std::vector<float> a = StrictlyLower(size, random.Normal(batch * size * size, 0.2f));
    const std::vector<float> b = random.Normal(batch * size * columns);
    CaseResult apart = RunSolve(sizes, a, b, /*in_place=*/false, backend);
    return in_place ? Worst({apart, RunSolve(sizes, a, b, /*in_place=*/true, backend)}) : apart;
  };
}

void AddPhases(std::vector<ParityCase>& cases) {
  const auto add = [&cases](const char* test, int32_t size, int32_t columns) {
    cases.push_back(GpuCase("phases", test, absl::StrCat("n=", size, " columns=", columns), kSumTolerance,
                            Solver(2, size, columns, /*in_place=*/false), /*phase=*/2));
  };
  add("solve_tri_small", 1, 5);
  add("solve_tri_small", 4, 8);
  add("solve_tri_small", 16, 16);
  add("solve_tri_small", 17, 3);
  add("solve_tri_64", 64, 64);
  add("solve_tri_64", 64, 33);
}

}  // namespace

void AddTriangularSolveCases(std::vector<ParityCase>& cases) {
  for (const int32_t size : {16, 32, 64}) {
    cases.push_back(GpuCase("parity", absl::StrCat("solve_", size), absl::StrCat("batch=5 n=", size, " columns=40"),
                            kSumTolerance, std::bind_front(RunBothTriangularSolve, size)));
  }
  AddPhases(cases);
  // Each size that is computed as the next of 16, 32 and 64, and those around.
  for (const int32_t size : {1, 5, 16, 17, 24, 32, 33, 48, 63, 64}) {
    for (const int64_t batch : {1, 3, 9}) {
      cases.push_back(GpuCase("shapes", "unit_lower_inverse",
                              absl::StrCat("batch=", batch, " n=", size, " and in place"), kSumTolerance,
                              [=](Backend& backend, RandomTensor& random) {
                                const auto a = StrictlyLower(size, random.Normal(batch * size * size, 0.3f));
                                return Worst({RunInverse(batch, size, a, /*in_place=*/false, backend),
                                              RunInverse(batch, size, a, /*in_place=*/true, backend)});
                              }));
    }
    for (const int32_t columns : {1, 31, 32, 40, 100}) {
      cases.push_back(GpuCase("shapes", "causal_solve", absl::StrCat("n=", size, " columns=", columns, " and in place"),
                              kSumTolerance, Solver(3, size, columns, /*in_place=*/true)));
    }
  }
  // Keys that all point one way make every entry of A the same, beta.
  for (const int32_t size : {16, 32, 64}) {
    for (const float beta : {0.5f, 0.999f, 1.0f, 2.0f}) {
      cases.push_back(GpuCase("shapes", "unit_lower_inverse", absl::StrCat("n=", size, " every entry ", beta),
                              kSumTolerance, [=](Backend& backend, RandomTensor&) {
                                return RunInverse(1, size, StrictlyLower(size, std::vector<float>(size * size, beta)),
                                                  /*in_place=*/true, backend);
                              }));
    }
  }
}

}  // namespace gdn::parity
