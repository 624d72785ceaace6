// Converts a Tensor message to a checked view, and finds elements that are not allowed.
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

// Converts a dtype of the API. INVALID_ARGUMENT (INVALID_TENSOR_DTYPE: field, found, expected) if it is not set or not
// known. `field` names the tensor in the error.
absl::StatusOr<DType> CheckDType(v1::DType dtype, std::string_view field);
v1::DType ToProto(DType dtype);

// Checks dtype, shape (-1 in `expected` matches any size) and the length of `data`, which are the tensor's bytes.
// INVALID_ARGUMENT (INVALID_TENSOR_DTYPE, INVALID_TENSOR_SHAPE, SHAPE_OVERFLOW, INVALID_TENSOR_DATA,
// INVALID_SHARED_RANGE) with metadata field, and for most reasons found and expected. If `shared` is not null, the
// elements may be in shared memory. *shared is then their range, of which only the length is checked, and the view has
// no data.
absl::StatusOr<TensorView> CheckTensor(const v1::Tensor& tensor, std::string_view data, std::string_view field,
                                       const std::vector<int64_t>& expected, const v1::SharedRange** shared = nullptr);

// Returns OK if a dense tensor of this dtype and shape has exactly `found` bytes. Else INVALID_ARGUMENT
// (INVALID_TENSOR_DATA: field, found, expected).
absl::Status CheckDataLength(std::string_view field, int64_t found, DType dtype, const std::vector<int64_t>& shape);

// Checks that elements [begin, begin + count) of the view, which must be inside it, are finite. INVALID_ARGUMENT
// (NON_FINITE_INPUT: field, index); the index has one number for each axis.
absl::Status CheckFinite(std::string_view field, const TensorView& view, int64_t begin, int64_t count);

// Checks that elements [begin, begin + count) of the view, which must be inside it, are from `low` to `high`, both
// included. INVALID_ARGUMENT (VALUE_OUT_OF_RANGE: field, index, found). NaN passes; CheckFinite finds it.
absl::Status CheckRange(std::string_view field, const TensorView& view, int64_t begin, int64_t count, float low,
                        float high);

}  // namespace gdn
