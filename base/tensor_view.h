// A typed, shaped view of bytes that someone else owns.
//
// Row-major, little-endian, dense. Thread safety: a value type over const memory. Ownership: none; the bytes must
// outlive it.
//
//   GDN_ASSIGN_OR_RETURN(int64_t n, CheckedElementCount({b, t, d}));
//   TensorView x{DType::kF32, {b, t, d}, bytes};
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"

namespace gdn {

struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::string_view data;  // exactly ElementCount() * DTypeSize(dtype) bytes

  int64_t ElementCount() const;
};

// Returns the product of `shape`: 1 for no dimensions, 0 if one is 0. INVALID_ARGUMENT (INVALID_TENSOR_SHAPE) for a
// negative dimension, and (SHAPE_OVERFLOW) if the product of the dimensions above 0 exceeds INT64_MAX / 8.
absl::StatusOr<int64_t> CheckedElementCount(absl::Span<const int64_t> shape);

// Formats a shape, such as "[2, 37, 64]".
std::string ShapeToString(absl::Span<const int64_t> shape);

}  // namespace gdn
