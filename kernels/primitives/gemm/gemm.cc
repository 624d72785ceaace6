#include "kernels/primitives/gemm/gemm.h"

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {

absl::Status ValidateGemm(const GemmParams& params) {
  constexpr char kOp[] = "Gemm";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "batch", params.batch, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "m", params.m, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "n", params.n, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "k", params.k, 0, kMaxOperatorRows));
  if (params.batch == 0 || params.m == 0 || params.n == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "c", params.c));
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "c_stride", params.c_stride, params.n));
  if (params.batch > 1) {
    GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "c_batch_stride", params.c_batch_stride, 1));
    GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "a_batch_stride", params.a_batch_stride, 0));
    GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "b_batch_stride", params.b_batch_stride, 0));
  }
  if (params.k == 0) return absl::OkStatus();
  const int64_t a_row = params.layout == GemmLayout::kTN ? params.m : params.k;
  const int64_t b_row = params.layout == GemmLayout::kNT ? params.k : params.n;
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "a_stride", params.a_stride, a_row));
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "b_stride", params.b_stride, b_row));
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "a", params.a));
  return RequirePointer(kOp, "b", params.b);
}

}  // namespace gdn
