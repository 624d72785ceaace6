#include "kernels/primitives/l2norm/l2norm.h"

#include <cmath>
#include <initializer_list>

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

// Both directions.
template <typename Params>
absl::Status Validate(const char* op, const Params& params, std::initializer_list<NamedPointer> pointers) {
  GDN_RETURN_IF_ERROR(RequireRange(op, "rows", params.rows, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(op, "width", params.width, 1, kMaxOperatorRows));
  if (!(params.epsilon >= 0.0f)) {
    return InvalidField(op, "epsilon", "epsilon is ", params.epsilon, "; expected 0 or more");
  }
  return params.rows == 0 ? absl::OkStatus() : RequirePointers(op, pointers);
}

double SumOfProducts(const float* a, const float* b, int64_t width) {
  double sum = 0.0;
  for (int64_t i = 0; i < width; ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

}  // namespace

absl::Status ValidateL2Norm(const L2NormParams& params) {
  return Validate("L2Norm", params, {{"x", params.x}, {"y", params.y}});
}

absl::Status ValidateL2NormBackward(const L2NormBackwardParams& params) {
  return Validate("L2NormBackward", params, {{"x", params.x}, {"dy", params.dy}, {"dx", params.dx}});
}

void L2NormReference(const L2NormParams& params) {
  for (int64_t row = 0; row < params.rows; ++row) {
    const float* x = params.x + row * params.width;
    const double r = 1.0 / std::sqrt(SumOfProducts(x, x, params.width) + params.epsilon);
    for (int64_t i = 0; i < params.width; ++i) params.y[row * params.width + i] = static_cast<float>(x[i] * r);
  }
}

void L2NormBackwardReference(const L2NormBackwardParams& params) {
  for (int64_t row = 0; row < params.rows; ++row) {
    const float* x = params.x + row * params.width;
    const float* dy = params.dy + row * params.width;
    const double r = 1.0 / std::sqrt(SumOfProducts(x, x, params.width) + params.epsilon);
    const double along = r * r * r * SumOfProducts(x, dy, params.width);
    for (int64_t i = 0; i < params.width; ++i) {
      params.dx[row * params.width + i] = static_cast<float>(r * dy[i] - along * x[i]);
    }
  }
}

}  // namespace gdn
