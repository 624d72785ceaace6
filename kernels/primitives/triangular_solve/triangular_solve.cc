#include "kernels/primitives/triangular_solve/triangular_solve.h"

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

constexpr int32_t kMaxColumns = 1 << 20;

}  // namespace

absl::Status ValidateUnitLowerInverse(const UnitLowerInverseParams& params) {
  constexpr char kOp[] = "UnitLowerInverse";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "batch", params.batch, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "size", params.size, 1, kMaxTriangularSize));
  if (params.batch == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "a", params.a));
  return RequirePointer(kOp, "inverse", params.inverse);
}

absl::Status ValidateCausalSolve(const CausalSolveParams& params) {
  constexpr char kOp[] = "CausalSolve";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "batch", params.batch, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "size", params.size, 1, kMaxTriangularSize));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "columns", params.columns, 1, kMaxColumns));
  if (params.batch == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "a", params.a));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "b", params.b));
  return RequirePointer(kOp, "x", params.x);
}

}  // namespace gdn
