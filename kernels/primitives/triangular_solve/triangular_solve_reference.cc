#include <vector>

#include "kernels/primitives/triangular_solve/triangular_solve.h"

namespace gdn {

void UnitLowerInverseReference(const UnitLowerInverseParams& params) {
  const int64_t n = params.size;
  std::vector<double> inverse(n * n);
  for (int64_t matrix = 0; matrix < params.batch; ++matrix) {
    const float* a = params.a + matrix * n * n;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = i == j ? 1.0 : 0.0;
        for (int64_t m = j; m < i; ++m) sum -= double{a[i * n + m]} * inverse[m * n + j];
        inverse[i * n + j] = sum;
      }
    }
    float* out = params.inverse + matrix * n * n;
    for (int64_t i = 0; i < n * n; ++i) out[i] = static_cast<float>(inverse[i]);
  }
}

void CausalSolveReference(const CausalSolveParams& params) {
  const int64_t n = params.size;
  std::vector<double> x(n);
  for (int64_t matrix = 0; matrix < params.batch; ++matrix) {
    const float* a = params.a + matrix * n * n;
    for (int64_t column = 0; column < params.columns; ++column) {
      const int64_t first = matrix * n * params.columns + column;
      for (int64_t i = 0; i < n; ++i) {
        double sum = params.b[first + i * params.columns];
        for (int64_t m = 0; m < i; ++m) sum += double{a[i * n + m]} * x[m];
        x[i] = sum;
      }
      for (int64_t i = 0; i < n; ++i) params.x[first + i * params.columns] = static_cast<float>(x[i]);
    }
  }
}

}  // namespace gdn
