#include <cmath>

#include "base/status_macros.h"
#include "kernels/common/parallel.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gated_rmsnorm/gated_rmsnorm_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/common/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

template <GateActivation kGate>
void NormalizeRows(const GatedRmsNormParams& params, int64_t begin, int64_t end) {
  const int64_t dim = params.value_dim;
  for (int64_t row = begin; row < end; ++row) {
    const float* x = params.x + row * dim;
    const float* z = params.z + row * dim;
    float* y = params.y + (params.tiled() ? OutputRowOf(row, params.key_heads, params.group) : row) * dim;
    const double mean = SumSquares(x, dim) / static_cast<double>(dim);
    const float factor = static_cast<float>(1.0 / std::sqrt(mean + double{params.epsilon}));
    ForVectors(dim, [&](auto d, int64_t i) HWY_ATTR {
      const auto normalized = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor));
      const auto input = hn::LoadU(d, z + i);
      const auto gate = kGate == GateActivation::kSilu ? Silu(d, input) : Sigmoid(d, input);
      hn::StoreU(hn::Mul(hn::Mul(normalized, hn::LoadU(d, params.weight + i)), gate), d, y + i);
    });
  }
}

void NormalizeGatedRows(const GatedRmsNormParams& params, int64_t begin, int64_t end) {
  params.gate == GateActivation::kSilu ? NormalizeRows<GateActivation::kSilu>(params, begin, end)
                                       : NormalizeRows<GateActivation::kSigmoid>(params, begin, end);
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {
namespace {

constexpr int64_t kRowsPerTask = 32;
constexpr int64_t kWorkPerElement = 4;  // exp and a division

}  // namespace

HWY_EXPORT(NormalizeGatedRows);

absl::Status GatedRmsNormCpu(const GatedRmsNormParams& params, ThreadPool& pool) {
  GDN_RETURN_IF_ERROR(RefuseTerms(params));
  ParallelForRows(pool, params.rows * params.value_dim * kWorkPerElement, params.rows, kRowsPerTask,
                  [&](int64_t begin, int64_t end) {
                    HWY_DYNAMIC_DISPATCH(NormalizeGatedRows)
                    (params, begin, end);
                  });
  return absl::OkStatus();
}

}  // namespace gdn
#endif  // HWY_ONCE
