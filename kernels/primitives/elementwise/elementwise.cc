#include "kernels/primitives/elementwise/elementwise.h"

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 40;

}  // namespace

absl::Status ValidateUnary(const UnaryParams& params) {
  constexpr char kOp[] = "Unary";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "count", params.count, 0, kMaxElements));
  if (params.count == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "x", params.x));
  return RequirePointer(kOp, "y", params.y);
}

absl::Status ValidateBinary(const BinaryParams& params) {
  constexpr char kOp[] = "Binary";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "count", params.count, 0, kMaxElements));
  if (params.count == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "a", params.a));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "b", params.b));
  return RequirePointer(kOp, "y", params.y);
}

absl::Status ValidateScale(const ScaleParams& params) {
  constexpr char kOp[] = "Scale";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "count", params.count, 0, kMaxElements));
  if (params.count == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "x", params.x));
  return RequirePointer(kOp, "y", params.y);
}

absl::Status ValidateVectorMultiply(const VectorMultiplyParams& params) {
  constexpr char kOp[] = "VectorMultiply";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "rows", params.rows, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "cols", params.cols, 0, kMaxOperatorRows));
  if (params.rows == 0 || params.cols == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "x_stride", params.x_stride, params.cols));
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "v_stride", params.v_stride, 1));
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "y_stride", params.y_stride, params.cols));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "x", params.x));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "v", params.v));
  return RequirePointer(kOp, "y", params.y);
}

absl::Status ValidateConvert(const ConvertParams& params) {
  constexpr char kOp[] = "Convert";
  const int singles = (params.from == DType::kF32 ? 1 : 0) + (params.to == DType::kF32 ? 1 : 0);
  if (singles != 1) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                     absl::StrCat(kOp, ": from ", std::string(DTypeName(params.from)), " to ",
                                  std::string(DTypeName(params.to)), "; expected float32 on one side only"),
                     {{"field", "from"}});
  }
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "count", params.count, 0, kMaxElements));
  if (params.count == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "x", params.x));
  return RequirePointer(kOp, "y", params.y);
}

}  // namespace gdn
