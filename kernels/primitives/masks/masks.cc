#include "kernels/primitives/masks/masks.h"

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

absl::Status ValidateShape(const char* op, int64_t batch, int64_t rows, int64_t cols) {
  GDN_RETURN_IF_ERROR(RequireRange(op, "batch", batch, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(op, "rows", rows, 0, kMaxOperatorRows));
  return RequireRange(op, "cols", cols, 0, kMaxOperatorRows);
}

}  // namespace

absl::Status ValidateTril(const TrilParams& params) {
  constexpr char kOp[] = "Tril";
  GDN_RETURN_IF_ERROR(ValidateShape(kOp, params.batch, params.rows, params.cols));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "diagonal", params.diagonal, -kMaxOperatorRows, kMaxOperatorRows));
  if (params.batch == 0 || params.rows == 0 || params.cols == 0) return absl::OkStatus();
  return RequirePointer(kOp, "y", params.y);
}

absl::Status ValidateCausalMask(const CausalMaskParams& params) {
  constexpr char kOp[] = "CausalMask";
  GDN_RETURN_IF_ERROR(ValidateShape(kOp, params.batch, params.size, params.size));
  if (params.batch == 0 || params.size == 0) return absl::OkStatus();
  return RequirePointer(kOp, "y", params.y);
}

absl::Status ValidateEye(const EyeParams& params) {
  constexpr char kOp[] = "Eye";
  GDN_RETURN_IF_ERROR(ValidateShape(kOp, params.batch, params.rows, params.cols));
  if (params.batch == 0 || params.rows == 0 || params.cols == 0) return absl::OkStatus();
  return RequirePointer(kOp, "y", params.y);
}

absl::Status ValidateApplyIdentity(const ApplyIdentityParams& params) {
  constexpr char kOp[] = "ApplyIdentity";
  GDN_RETURN_IF_ERROR(ValidateShape(kOp, params.batch, params.size, params.size));
  if (params.sign != 1.0f && params.sign != -1.0f) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                     absl::StrCat(kOp, ": sign is ", params.sign, "; expected 1 or -1"), {{"field", "sign"}});
  }
  if (params.batch == 0 || params.size == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "x", params.x));
  return RequirePointer(kOp, "y", params.y);
}

}  // namespace gdn
