// From a Tensor message to a checked view, and the scan for elements that may not be there.
//
// Thread safety: free functions. Ownership: views point into the message.
//
//   GDN_ASSIGN_OR_RETURN(TensorView q, CheckTensor(input.q(), input.q().data(), "q", {t, h, k}));
//   GDN_RETURN_IF_ERROR(CheckFinite("q", q, 0, rows));
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/tensor_view.h"
#include "gdn/v1/tensor.pb.h"

namespace gdn {

// INVALID_ARGUMENT (INVALID_TENSOR_DTYPE). `field` names the tensor in the message.
absl::StatusOr<DType> CheckDType(v1::DType dtype, std::string_view field);
v1::DType ToProto(DType dtype);

// Checks dtype, shape (-1 in `expected` matches any size) and the length of `data`, the tensor's wherever it is.
// INVALID_ARGUMENT (INVALID_TENSOR_DTYPE, INVALID_TENSOR_SHAPE, SHAPE_OVERFLOW, INVALID_TENSOR_DATA,
// INVALID_SHARED_RANGE) with metadata field, found and expected. With `shared` the elements may lie in shared memory:
// *shared is where, of the right length and not looked at any further, and the view has no data.
absl::StatusOr<TensorView> CheckTensor(const v1::Tensor& tensor, std::string_view data, std::string_view field,
                                       const std::vector<int64_t>& expected, const v1::SharedRange** shared = nullptr);

// INVALID_ARGUMENT (INVALID_TENSOR_DATA: field, found, expected) where `found` bytes are not those of the shape.
absl::Status CheckDataLength(std::string_view field, int64_t found, DType dtype, const std::vector<int64_t>& shape);

// Elements [begin, begin + count) of the view, which must be inside it. INVALID_ARGUMENT (NON_FINITE_INPUT: field,
// index); the index has one number an axis.
absl::Status CheckFinite(std::string_view field, const TensorView& view, int64_t begin, int64_t count);

// The same for values outside [low, high] (VALUE_OUT_OF_RANGE: field, index, found). NaN is left to CheckFinite.
absl::Status CheckRange(std::string_view field, const TensorView& view, int64_t begin, int64_t count, float low,
                        float high);

}  // namespace gdn
