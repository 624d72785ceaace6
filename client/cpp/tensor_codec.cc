#include "client/cpp/tensor_codec.h"

#include <string>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

absl::Status CheckBytes(absl::Span<const int64_t> shape, DType dtype, size_t found) {
  GDN_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(shape));
  const int64_t expected = count * static_cast<int64_t>(DTypeSize(dtype));
  if (static_cast<int64_t>(found) == expected) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData,
                   StrCat("a ", DTypeName(dtype), " tensor of shape ", ShapeToString(shape), " has ", expected,
                          " bytes, found ", found),
                   {{"found", StrCat(found)}, {"expected", StrCat(expected)}});
}

v1::Tensor EmptyTensor(DType dtype, absl::Span<const int64_t> shape) {
  v1::Tensor tensor;
  tensor.set_dtype(ToProtoDType(dtype));
  for (const int64_t dim : shape) tensor.add_shape(dim);
  return tensor;
}

}  // namespace

// The two enums have the same numbers.
static_assert(static_cast<int>(DType::kF32) == v1::DTYPE_F32 && static_cast<int>(DType::kF16) == v1::DTYPE_F16 &&
              static_cast<int>(DType::kBF16) == v1::DTYPE_BF16);

v1::DType ToProtoDType(DType dtype) { return static_cast<v1::DType>(dtype); }

absl::StatusOr<DType> FromProtoDType(v1::DType dtype) {
  for (const DType known : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (dtype == ToProtoDType(known)) return known;
  }
  return MakeError(
      absl::StatusCode::kInvalidArgument, reason::kInvalidTensorDtype,
      StrCat("unknown tensor dtype ", static_cast<int>(dtype), ", expected DTYPE_F32, DTYPE_F16 or DTYPE_BF16"),
      {{"found", StrCat(static_cast<int>(dtype))}, {"expected", "F32, F16 or BF16"}});
}

absl::StatusOr<v1::Tensor> MakeTensor(absl::Span<const float> values, absl::Span<const int64_t> shape, DType dtype) {
  GDN_RETURN_IF_ERROR(CheckBytes(shape, dtype, values.size() * DTypeSize(dtype)));
  v1::Tensor tensor = EmptyTensor(dtype, shape);
  std::string* data = tensor.mutable_data();
  data->resize(values.size() * DTypeSize(dtype));
  ConvertFromFloat(values.data(), values.size(), dtype, data->data());
  return tensor;
}

absl::StatusOr<v1::Tensor> MakeTensor(const TensorView& view) {
  GDN_RETURN_IF_ERROR(CheckBytes(view.shape, view.dtype, view.data.size()));
  v1::Tensor tensor = EmptyTensor(view.dtype, view.shape);
  tensor.set_data(view.data.data(), view.data.size());
  return tensor;
}

absl::StatusOr<TensorView> ViewTensor(const v1::Tensor& tensor) { return ViewTensorBytes(tensor, tensor.data()); }

absl::StatusOr<TensorView> ViewTensorBytes(const v1::Tensor& tensor, std::string_view bytes) {
  TensorView view;
  GDN_ASSIGN_OR_RETURN(view.dtype, FromProtoDType(tensor.dtype()));
  view.shape.assign(tensor.shape().begin(), tensor.shape().end());
  GDN_RETURN_IF_ERROR(CheckBytes(view.shape, view.dtype, bytes.size()));
  view.data = bytes;
  return view;
}

absl::StatusOr<std::vector<float>> TensorToFloats(const v1::Tensor& tensor, std::optional<std::vector<int64_t>> shape) {
  GDN_ASSIGN_OR_RETURN(const TensorView view, ViewTensor(tensor));
  if (shape.has_value() && *shape != view.shape) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidTensorShape,
                     StrCat("the tensor has shape ", ShapeToString(view.shape), ", expected ", ShapeToString(*shape)),
                     {{"found", ShapeToString(view.shape)}, {"expected", ShapeToString(*shape)}});
  }
  std::vector<float> values(static_cast<size_t>(view.ElementCount()));
  ConvertToFloat(view.dtype, view.data.data(), values.size(), values.data());
  return values;
}

}  // namespace gdn
