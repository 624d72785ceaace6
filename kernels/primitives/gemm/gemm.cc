#include "kernels/primitives/gemm/gemm.h"

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {

absl::Status ValidateGemm(const GemmParams& params) {
  constexpr char kOp[] = "Gemm";
  GDN_RETURN_IF_ERROR(RequireSizes(kOp, {{"batch", params.batch}, {"m", params.m}, {"n", params.n}, {"k", params.k}}));
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
  return RequirePointers(kOp, {{"a", params.a}, {"b", params.b}});
}

void GemmReference(const GemmParams& params) {
  const bool a_transposed = params.layout == GemmLayout::kTN;
  const bool b_transposed = params.layout == GemmLayout::kNT;
  for (int64_t batch = 0; batch < params.batch; ++batch) {
    const float* a = params.a + batch * params.a_batch_stride;
    const float* b = params.b + batch * params.b_batch_stride;
    float* c = params.c + batch * params.c_batch_stride;
    for (int64_t i = 0; i < params.m; ++i) {
      for (int64_t j = 0; j < params.n; ++j) {
        double sum = 0.0;
        for (int64_t l = 0; l < params.k; ++l) {
          const double a_il = a_transposed ? a[l * params.a_stride + i] : a[i * params.a_stride + l];
          const double b_lj = b_transposed ? b[j * params.b_stride + l] : b[l * params.b_stride + j];
          sum += a_il * b_lj;
        }
        float& element = c[i * params.c_stride + j];
        double result = params.alpha * sum;
        if (params.beta != 0.0f) result += double{params.beta} * double{element};
        element = static_cast<float>(result);
      }
    }
  }
}

}  // namespace gdn
