#include <cmath>

#include "kernels/common/parallel.h"
#include "kernels/qk_l2norm/qk_l2norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/qk_l2norm/qk_l2norm_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/common/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

HWY_INLINE void NormalizeHead(const float* x, int32_t dim, bool normalize, float scale, float* y) {
  const double norm = normalize ? std::sqrt(SumSquares(x, dim) + double{kL2NormEpsilon}) : 1.0;
  const float factor = static_cast<float>(double{scale} / norm);
  ForVectors(
      dim, [&](auto d, int64_t i) HWY_ATTR { hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor)), d, y + i); });
}

void NormalizeQkRows(const QkL2NormParams& params, int64_t begin, int64_t end) {
  const int64_t dense = int64_t{params.key_heads} * params.key_dim;
  for (int64_t row = begin; row < end; ++row) {
    for (int32_t head = 0; head < params.key_heads; ++head) {
      const int64_t in = row * params.in_stride + int64_t{head} * params.key_dim;
      const int64_t out = row * dense + int64_t{head} * params.key_dim;
      NormalizeHead(params.q + in, params.key_dim, params.normalize, params.scale, params.q_out + out);
      NormalizeHead(params.k + in, params.key_dim, params.normalize, 1.0f, params.k_out + out);
    }
  }
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {
namespace {

constexpr int64_t kRowsPerTask = 4;

}  // namespace

HWY_EXPORT(NormalizeQkRows);

absl::Status QkL2NormCpu(const QkL2NormParams& params, ThreadPool& pool) {
  ParallelForRows(pool, 2 * params.rows * params.key_heads * params.key_dim, params.rows, kRowsPerTask,
                  [&](int64_t begin, int64_t end) {
                    HWY_DYNAMIC_DISPATCH(NormalizeQkRows)
                    (params, begin, end);
                  });
  return absl::OkStatus();
}

}  // namespace gdn
#endif  // HWY_ONCE
