// Converts floats to tensors of the API and back, and checks every size.
//
// Thread safety: free functions. Ownership: MakeTensor copies; ViewTensor borrows the tensor's bytes.
//
//   GDN_ASSIGN_OR_RETURN(*request.mutable_hidden_states()->mutable_hidden_states(),
//                        MakeTensor(x, {tokens, hidden}, DType::kBF16));
//   GDN_ASSIGN_OR_RETURN(v1::PrefillResponse reply, client.Prefill(request));
//   GDN_ASSIGN_OR_RETURN(std::vector<float> y, TensorToFloats(reply.output(), {{tokens, hidden}}));
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/tensor_view.h"
#include "gdn/v1/tensor.pb.h"

namespace gdn {

v1::DType ToProtoDType(DType dtype);

// Converts a dtype of the API. INVALID_ARGUMENT (INVALID_TENSOR_DTYPE) for DTYPE_UNSPECIFIED and for values that this
// build does not know.
absl::StatusOr<DType> FromProtoDType(v1::DType dtype);

// Makes a tensor from `values` in row-major order, rounded to `dtype`. INVALID_ARGUMENT if their number is not the
// product of `shape` (INVALID_TENSOR_DATA), or the shape is invalid (INVALID_TENSOR_SHAPE, SHAPE_OVERFLOW).
absl::StatusOr<v1::Tensor> MakeTensor(absl::Span<const float> values, absl::Span<const int64_t> shape,
                                      DType dtype = DType::kF32);

// Makes a tensor with a copy of the view's elements, dtype and shape. INVALID_ARGUMENT if the number of bytes is not
// shape x dtype (INVALID_TENSOR_DATA), or the shape is invalid (INVALID_TENSOR_SHAPE, SHAPE_OVERFLOW).
absl::StatusOr<v1::Tensor> MakeTensor(const TensorView& view);

// Returns the tensor's dtype, shape and bytes; the tensor still owns the bytes. INVALID_ARGUMENT if the dtype is
// unknown (INVALID_TENSOR_DTYPE), the shape is invalid (INVALID_TENSOR_SHAPE, SHAPE_OVERFLOW) or the number of bytes is
// not shape x dtype (INVALID_TENSOR_DATA). The latter also for a tensor in shared memory: use SharedMemory::View.
absl::StatusOr<TensorView> ViewTensor(const v1::Tensor& tensor);

// Returns the tensor's dtype and shape with `bytes` instead of its own bytes; `bytes` must outlive the result. Errors
// as of ViewTensor.
absl::StatusOr<TensorView> ViewTensorBytes(const v1::Tensor& tensor, std::string_view bytes);

// Returns the elements as float32, in row-major order. Errors as of ViewTensor, and INVALID_ARGUMENT
// (INVALID_TENSOR_SHAPE) if `shape` is given and differs.
absl::StatusOr<std::vector<float>> TensorToFloats(const v1::Tensor& tensor,
                                                  std::optional<std::vector<int64_t>> shape = std::nullopt);

}  // namespace gdn
