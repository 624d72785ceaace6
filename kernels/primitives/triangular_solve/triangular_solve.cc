#include "kernels/primitives/triangular_solve/triangular_solve.h"

#include <initializer_list>
#include <vector>

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

constexpr int32_t kMaxColumns = 1 << 20;

absl::Status Validate(const char* op, int64_t batch, int32_t size, std::initializer_list<NamedPointer> pointers) {
  GDN_RETURN_IF_ERROR(RequireSizes(op, {{"batch", batch}}));
  GDN_RETURN_IF_ERROR(RequireRange(op, "size", size, 1, kMaxTriangularSize));
  return batch == 0 ? absl::OkStatus() : RequirePointers(op, pointers);
}

}  // namespace

absl::Status ValidateUnitLowerInverse(const UnitLowerInverseParams& params) {
  return Validate("UnitLowerInverse", params.batch, params.size, {{"a", params.a}, {"inverse", params.inverse}});
}

absl::Status ValidateCausalSolve(const CausalSolveParams& params) {
  constexpr char kOp[] = "CausalSolve";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "columns", params.columns, 1, kMaxColumns));
  return Validate(kOp, params.batch, params.size, {{"a", params.a}, {"b", params.b}, {"x", params.x}});
}

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
