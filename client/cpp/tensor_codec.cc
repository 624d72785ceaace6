#include "client/cpp/tensor_codec.h"

#include <string>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

absl::Status WrongSize(absl::Span<const int64_t> shape, DType dtype, int64_t found, int64_t expected) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData,
                   StrCat("a ", DTypeName(dtype), " tensor of shape ", ShapeToString(shape), " has ", expected,
                          " bytes, found ", found),
                   {{"found", StrCat(found)}, {"expected", StrCat(expected)}});
}

absl::Status CheckBytes(absl::Span<const int64_t> shape, DType dtype, size_t found) {
  GDN_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(shape));
  const int64_t expected = count * static_cast<int64_t>(DTypeSize(dtype));
  if (static_cast<int64_t>(found) != expected) return WrongSize(shape, dtype, static_cast<int64_t>(found), expected);
  return absl::OkStatus();
}

v1::Tensor EmptyTensor(DType dtype, absl::Span<const int64_t> shape) {
  v1::Tensor tensor;
  tensor.set_dtype(ToProtoDType(dtype));
  for (const int64_t dim : shape) tensor.add_shape(dim);
  return tensor;
}

}  // namespace

v1::DType ToProtoDType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return v1::DTYPE_F32;
    case DType::kF16:
      return v1::DTYPE_F16;
    case DType::kBF16:
      return v1::DTYPE_BF16;
  }
  return v1::DTYPE_UNSPECIFIED;
}

absl::StatusOr<DType> FromProtoDType(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return DType::kF32;
    case v1::DTYPE_F16:
      return DType::kF16;
    case v1::DTYPE_BF16:
      return DType::kBF16;
    default:
      return MakeError(
          absl::StatusCode::kInvalidArgument, reason::kInvalidTensorDtype,
          StrCat("unknown tensor dtype ", static_cast<int>(dtype), ", expected DTYPE_F32, DTYPE_F16 or DTYPE_BF16"),
          {{"found", StrCat(static_cast<int>(dtype))}, {"expected", "F32, F16 or BF16"}});
  }
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

absl::StatusOr<TensorView> ViewTensor(const v1::Tensor& tensor) {
  TensorView view;
  GDN_ASSIGN_OR_RETURN(view.dtype, FromProtoDType(tensor.dtype()));
  view.shape.assign(tensor.shape().begin(), tensor.shape().end());
  GDN_RETURN_IF_ERROR(CheckBytes(view.shape, view.dtype, tensor.data().size()));
  view.data = tensor.data();
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
