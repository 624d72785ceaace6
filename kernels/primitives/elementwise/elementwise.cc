#include "kernels/primitives/elementwise/elementwise.h"

#include <cmath>
#include <initializer_list>

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 40;

absl::Status ValidateElements(const char* op, int64_t count, std::initializer_list<NamedPointer> pointers) {
  GDN_RETURN_IF_ERROR(RequireRange(op, "count", count, 0, kMaxElements));
  return count == 0 ? absl::OkStatus() : RequirePointers(op, pointers);
}

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double Apply(UnaryOp op, double x, double factor) {
  switch (op) {
    case UnaryOp::kExp:
      return std::exp(x);
    case UnaryOp::kLog:
      return std::log(x);
    case UnaryOp::kSigmoid:
      return Sigmoid(x);
    case UnaryOp::kSilu:
      return x * Sigmoid(x);
    case UnaryOp::kSoftplus:
      return x > 20.0 ? x : std::log1p(std::exp(x));
    case UnaryOp::kNeg:
      return -x;
    case UnaryOp::kScale:
      return factor * x;
  }
  return NAN;
}

double Apply(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return a + b;
    case BinaryOp::kSub:
      return a - b;
    case BinaryOp::kMul:
      return a * b;
    case BinaryOp::kAbsDiff:
      return std::abs(a - b);
    case BinaryOp::kSquaredDiff:
      return (a - b) * (a - b);
  }
  return NAN;
}

}  // namespace

absl::Status ValidateUnary(const UnaryParams& params) {
  return ValidateElements("Unary", params.count, {{"x", params.x}, {"y", params.y}});
}

absl::Status ValidateBinary(const BinaryParams& params) {
  return ValidateElements("Binary", params.count, {{"a", params.a}, {"b", params.b}, {"y", params.y}});
}

absl::Status ValidateVectorMultiply(const VectorMultiplyParams& params) {
  constexpr char kOp[] = "VectorMultiply";
  GDN_RETURN_IF_ERROR(RequireSizes(kOp, {{"rows", params.rows}, {"cols", params.cols}}));
  if (params.rows == 0 || params.cols == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "x_stride", params.x_stride, params.cols));
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "v_stride", params.v_stride, 1));
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "y_stride", params.y_stride, params.cols));
  return RequirePointers(kOp, {{"x", params.x}, {"v", params.v}, {"y", params.y}});
}

void UnaryReference(const UnaryParams& params) {
  for (int64_t i = 0; i < params.count; ++i) {
    params.y[i] = static_cast<float>(Apply(params.op, params.x[i], params.factor));
  }
}

void BinaryReference(const BinaryParams& params) {
  for (int64_t i = 0; i < params.count; ++i) {
    params.y[i] = static_cast<float>(Apply(params.op, params.a[i], params.b[i]));
  }
}

void VectorMultiplyReference(const VectorMultiplyParams& params) {
  for (int64_t row = 0; row < params.rows; ++row) {
    for (int64_t col = 0; col < params.cols; ++col) {
      const double factor = params.v[(params.vector == VectorKind::kRow ? col : row) * params.v_stride];
      params.y[row * params.y_stride + col] = static_cast<float>(params.x[row * params.x_stride + col] * factor);
    }
  }
}

}  // namespace gdn
