// Tensors of the API from floats, and back, with every size checked.
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

// INVALID_ARGUMENT (INVALID_TENSOR_DTYPE) for DTYPE_UNSPECIFIED and for values this build does not know.
absl::StatusOr<DType> FromProtoDType(v1::DType dtype);

// `values` in row-major order, rounded to `dtype`. INVALID_ARGUMENT where their number is not the product of `shape`
// (INVALID_TENSOR_DATA), or the shape is itself not valid (INVALID_TENSOR_SHAPE, SHAPE_OVERFLOW).
absl::StatusOr<v1::Tensor> MakeTensor(absl::Span<const float> values, absl::Span<const int64_t> shape,
                                      DType dtype = DType::kF32);

// The same elements in the same dtype. Errors as above.
absl::StatusOr<v1::Tensor> MakeTensor(const TensorView& view);

// The tensor's dtype, shape and bytes, which it goes on owning. INVALID_ARGUMENT where the dtype is not known
// (INVALID_TENSOR_DTYPE) or the bytes are not shape x dtype long (INVALID_TENSOR_DATA).
absl::StatusOr<TensorView> ViewTensor(const v1::Tensor& tensor);

// The same with bytes that lie elsewhere.
absl::StatusOr<TensorView> ViewTensorBytes(const v1::Tensor& tensor, std::string_view bytes);

// The elements as float32. Errors of ViewTensor, and INVALID_ARGUMENT (INVALID_TENSOR_SHAPE) where `shape` is given and
// differs.
absl::StatusOr<std::vector<float>> TensorToFloats(const v1::Tensor& tensor,
                                                  std::optional<std::vector<int64_t>> shape = std::nullopt);

}  // namespace gdn
