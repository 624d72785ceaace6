#include "kernels/primitives/l2norm/l2norm.h"

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

absl::Status ValidateShape(const char* op, int64_t rows, int64_t width, float epsilon) {
  GDN_RETURN_IF_ERROR(RequireRange(op, "rows", rows, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(op, "width", width, 1, kMaxOperatorRows));
  if (epsilon >= 0.0f) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                   absl::StrCat(op, ": epsilon is ", epsilon, "; expected 0 or more"), {{"field", "epsilon"}});
}

}  // namespace

absl::Status ValidateL2Norm(const L2NormParams& params) {
  constexpr char kOp[] = "L2Norm";
  GDN_RETURN_IF_ERROR(ValidateShape(kOp, params.rows, params.width, params.epsilon));
  if (params.rows == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "x", params.x));
  return RequirePointer(kOp, "y", params.y);
}

absl::Status ValidateL2NormBackward(const L2NormBackwardParams& params) {
  constexpr char kOp[] = "L2NormBackward";
  GDN_RETURN_IF_ERROR(ValidateShape(kOp, params.rows, params.width, params.epsilon));
  if (params.rows == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "x", params.x));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "dy", params.dy));
  return RequirePointer(kOp, "dx", params.dx);
}

}  // namespace gdn
