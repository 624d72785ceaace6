#include "kernels/primitives/gemm/gemm.h"

namespace gdn {

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
