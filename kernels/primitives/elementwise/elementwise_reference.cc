#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/primitives/elementwise/elementwise.h"

namespace gdn {
namespace {

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double Apply(UnaryOp op, double x) {
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

void UnaryReference(const UnaryParams& params) {
  for (int64_t i = 0; i < params.count; ++i) params.y[i] = static_cast<float>(Apply(params.op, params.x[i]));
}

void BinaryReference(const BinaryParams& params) {
  for (int64_t i = 0; i < params.count; ++i) {
    params.y[i] = static_cast<float>(Apply(params.op, params.a[i], params.b[i]));
  }
}

void ScaleReference(const ScaleParams& params) {
  for (int64_t i = 0; i < params.count; ++i) {
    params.y[i] = static_cast<float>(double{params.factor} * double{params.x[i]});
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

void ConvertReference(const ConvertParams& params) {
  if (params.from == DType::kF32) {
    ConvertFromFloat(static_cast<const float*>(params.x), params.count, params.to, params.y);
  } else {
    ConvertToFloat(params.from, params.x, params.count, static_cast<float*>(params.y));
  }
}

}  // namespace gdn
