// Functions of one element, of two elements, and of a matrix and a row or column vector.
//
//   unary    y = f(x), f among exp, log, sigmoid, silu, softplus, neg, scale (factor * x)
//   binary   y = a op b, op among +, -, *, |a - b|, (a - b)^2
//   multiply by a vector    y[i][j] = x[i][j] * v[j] (row vector) or x[i][j] * v[i] (column vector)
// sigmoid, silu and softplus are the layer's (finite wherever the exact result is; softplus(x) = x above 20).
// An output may be the same tensor as an input, but must not overlap one otherwise.
// Thread safety: any number of calls at a time on different outputs. Ownership: none; pointers are backend memory (host
// memory for the references).
//
//   GDN_RETURN_IF_ERROR(UnaryGpu({.op = UnaryOp::kExp, .count = n, .x = x, .y = y}, stream));
//   GDN_RETURN_IF_ERROR(VectorMultiplyGpu({.vector = VectorKind::kColumn, .rows = c, .cols = k, .x = x, .x_stride = k,
//                                          .v = beta, .y = y, .y_stride = k}, stream));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/stream.h"

namespace gdn {

enum class UnaryOp : uint8_t { kExp, kLog, kSigmoid, kSilu, kSoftplus, kNeg, kScale };
enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kAbsDiff, kSquaredDiff };
enum class VectorKind : uint8_t { kRow, kColumn };

struct UnaryParams {
  UnaryOp op = UnaryOp::kExp;
  int64_t count = 0;
  const float* x = nullptr;  // [count]
  float* y = nullptr;        // [count]
  float factor = 1.0f;       // y = factor * x for kScale; unused otherwise
};

struct BinaryParams {
  BinaryOp op = BinaryOp::kAdd;
  int64_t count = 0;
  const float* a = nullptr;  // [count]
  const float* b = nullptr;  // [count]
  float* y = nullptr;        // [count]
};

struct VectorMultiplyParams {
  VectorKind vector = VectorKind::kRow;
  int64_t rows = 0;
  int64_t cols = 0;
  const float* x = nullptr;  // [rows, cols], x_stride floats from row to row
  int64_t x_stride = 0;
  const float* v = nullptr;  // kRow: [cols]; kColumn: [rows]. For both kinds, element i is v[i * v_stride]
  int64_t v_stride = 1;
  float* y = nullptr;  // [rows, cols], y_stride floats from row to row
  int64_t y_stride = 0;
};

absl::Status ValidateUnary(const UnaryParams& params);
absl::Status ValidateBinary(const BinaryParams& params);
absl::Status ValidateVectorMultiply(const VectorMultiplyParams& params);

void UnaryReference(const UnaryParams& params);
void BinaryReference(const BinaryParams& params);
void VectorMultiplyReference(const VectorMultiplyParams& params);

absl::Status UnaryGpu(const UnaryParams& params, const gpu::Stream& stream);
absl::Status BinaryGpu(const BinaryParams& params, const gpu::Stream& stream);
absl::Status VectorMultiplyGpu(const VectorMultiplyParams& params, const gpu::Stream& stream);

}  // namespace gdn
