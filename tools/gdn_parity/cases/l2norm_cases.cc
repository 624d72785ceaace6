// Rows of the plain L2 norm and of its backward pass.

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/primitives/l2norm/l2norm.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {
namespace {

constexpr char kEpsilon[] = "1e-6";

CaseResult Forward(int64_t rows, int64_t width, std::vector<float> x, bool in_place, Backend& backend) {
  return OperatorCall<L2NormParams>("l2norm", {{"epsilon", kEpsilon}}, {.rows = rows, .width = width})
      .InPlaceIf(in_place, &L2NormParams::x, &L2NormParams::y, "x", "y", {rows, width}, std::move(x))
      .Run(backend, L2NormReference, L2NormGpu);
}

CaseResult Backward(int64_t rows, int64_t width, std::vector<float> x, Backend& backend, RandomTensor& random) {
  return OperatorCall<L2NormBackwardParams>("l2norm_backward", {{"epsilon", kEpsilon}}, {.rows = rows, .width = width})
      .In(&L2NormBackwardParams::x, "x", {rows, width}, std::move(x))
      .In(&L2NormBackwardParams::dy, "dy", {rows, width}, random.Normal(rows * width))
      .Out(&L2NormBackwardParams::dx, "dx", {rows, width})
      .Run(backend, L2NormBackwardReference, L2NormBackwardGpu);
}

// Rows of five magnitudes; a row of zeros stays one.
std::vector<float> UnevenRows(int64_t rows, int64_t width, RandomTensor& random) {
  std::vector<float> x = random.Normal(rows * width);
  for (int64_t i = 0; i < rows * width; ++i) {
    x[i] *= i < width ? 0.0f : std::pow(10.0f, -static_cast<float>(i / width % 5));
  }
  return x;
}

}  // namespace

void AddL2NormCases(std::vector<ParityCase>& cases) {
  cases.push_back(GpuCase("parity", "l2norm_fwd", "rows=37 n=100", kElementwiseTolerance,
                          [](Backend& backend, RandomTensor& random) {
                            return Forward(37, 100, random.Normal(37 * 100, 0.01f), /*in_place=*/false, backend);
                          }));
  cases.push_back(
      GpuCase("parity", "l2norm_bwd", "rows=37 n=100", kSumTolerance, [](Backend& backend, RandomTensor& random) {
        return Backward(37, 100, random.Normal(37 * 100), backend, random);
      }));
  constexpr int64_t kRows = 11;
  for (const int64_t width : {1, 3, 24, 33, 128, 130, 1000}) {
    cases.push_back(GpuCase("shapes", "l2norm_fwd", absl::StrCat("rows=11 n=", width, " in place"),
                            kElementwiseTolerance, [width](Backend& backend, RandomTensor& random) {
                              return Forward(kRows, width, UnevenRows(kRows, width, random), true, backend);
                            }));
    cases.push_back(GpuCase("shapes", "l2norm_bwd", absl::StrCat("rows=11 n=", width), kSumTolerance,
                            [width](Backend& backend, RandomTensor& random) {
                              return Backward(kRows, width, UnevenRows(kRows, width, random), backend, random);
                            }));
  }
}

}  // namespace gdn::parity
