#include "server/validation/tensor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr std::pair<DType, v1::DType> kDTypes[] = {
    {DType::kF32, v1::DTYPE_F32}, {DType::kF16, v1::DTYPE_F16}, {DType::kBF16, v1::DTYPE_BF16}};

// Returns the multi-index of a flat position: "[1, 0, 17]".
std::string IndexToString(const std::vector<int64_t>& shape, int64_t flat) {
  std::vector<int64_t> index(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    index[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  return StrCat("[", absl::StrJoin(index, ", "), "]");
}

float ElementAt(const TensorView& view, int64_t index) {
  float value = 0.0f;
  const size_t size = DTypeSize(view.dtype);
  ConvertToFloat(view.dtype, view.data.data() + static_cast<size_t>(index) * size, 1, &value);
  return value;
}

}  // namespace

absl::StatusOr<DType> CheckDType(v1::DType dtype, std::string_view field) {
  for (const auto& [ours, theirs] : kDTypes) {
    if (theirs == dtype) return ours;
  }
  const std::string found = StrCat(static_cast<int>(dtype));
  return MakeError(
      absl::StatusCode::kInvalidArgument, reason::kInvalidTensorDtype,
      StrCat(field, " has dtype ", found, "; set DTYPE_F32 (1), DTYPE_F16 (2) or DTYPE_BF16 (3)"),
      {{"field", std::string(field)}, {"found", found}, {"expected", "DTYPE_F32, DTYPE_F16 or DTYPE_BF16"}});
}

v1::DType ToProto(DType dtype) {
  return std::ranges::find(kDTypes, dtype, &std::pair<DType, v1::DType>::first)->second;
}

absl::Status CheckDataLength(std::string_view field, int64_t found, DType dtype, const std::vector<int64_t>& shape) {
  int64_t expected = static_cast<int64_t>(DTypeSize(dtype));
  for (const int64_t dim : shape) expected *= dim;
  if (found == expected) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData,
                   StrCat(field, " has ", found, " bytes of data, its shape ", ShapeToString(shape), " of ",
                          DTypeName(dtype), " needs ", expected),
                   {{"field", std::string(field)}, {"found", StrCat(found)}, {"expected", StrCat(expected)}});
}

absl::StatusOr<TensorView> CheckTensor(const v1::Tensor& tensor, std::string_view data, std::string_view field,
                                       const std::vector<int64_t>& expected, const v1::SharedRange** shared) {
  TensorView view;
  GDN_ASSIGN_OR_RETURN(view.dtype, CheckDType(tensor.dtype(), field));
  view.shape.assign(tensor.shape().begin(), tensor.shape().end());
  const absl::StatusOr<int64_t> count = CheckedElementCount(view.shape);
  if (!count.ok()) {
    return WithMetadata(WithMetadata(WithPrefix(count.status(), field), "field", field), "found",
                        ShapeToString(view.shape));
  }
  bool matches = view.shape.size() == expected.size();
  for (size_t axis = 0; matches && axis < expected.size(); ++axis) {
    matches = expected[axis] == -1 || expected[axis] == view.shape[axis];
  }
  if (!matches) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, reason::kInvalidTensorShape,
        StrCat(field, " has shape ", ShapeToString(view.shape), ", expected ", ShapeToString(expected),
               " (-1: any size)"),
        {{"field", std::string(field)}, {"found", ShapeToString(view.shape)}, {"expected", ShapeToString(expected)}});
  }
  if (!tensor.has_shared()) {
    GDN_RETURN_IF_ERROR(CheckDataLength(field, static_cast<int64_t>(data.size()), view.dtype, view.shape));
    view.data = data;
    return view;
  }
  if (shared == nullptr || !data.empty()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSharedRange,
                     StrCat(field, shared == nullptr ? " may not lie in shared memory; send `data`"
                                                     : " has both `data` and `shared`; send one of them"),
                     {{"field", std::string(field)}});
  }
  GDN_RETURN_IF_ERROR(CheckDataLength(field, tensor.shared().bytes(), view.dtype, view.shape));
  *shared = &tensor.shared();
  return view;
}

absl::Status CheckFinite(std::string_view field, const TensorView& view, int64_t begin, int64_t count) {
  const size_t size = DTypeSize(view.dtype);
  if (!AnyNonFinite(view.dtype, view.data.data() + static_cast<size_t>(begin) * size, count)) return absl::OkStatus();
  int64_t index = begin;
  while (!AnyNonFinite(view.dtype, view.data.data() + static_cast<size_t>(index) * size, 1)) ++index;
  const std::string where = IndexToString(view.shape, index);
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kNonFiniteInput,
                   StrCat(field, where, " is ", ElementAt(view, index),
                          "; inputs must be finite (steps have allow_non_finite, which lets them through)"),
                   {{"field", std::string(field)}, {"index", where}});
}

absl::Status CheckRange(std::string_view field, const TensorView& view, int64_t begin, int64_t count, float low,
                        float high) {
  for (int64_t index = begin; index < begin + count; ++index) {
    const float value = ElementAt(view, index);
    if (!(value < low) && !(value > high)) continue;
    const std::string where = IndexToString(view.shape, index);
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                     StrCat(field, where, " is ", value, ", expected a value in [", low, ", ", high, "]"),
                     {{"field", std::string(field)}, {"index", where}, {"found", StrCat(value)}});
  }
  return absl::OkStatus();
}

}  // namespace gdn
