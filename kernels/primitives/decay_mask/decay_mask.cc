#include "kernels/primitives/decay_mask/decay_mask.h"

#include <cmath>
#include <vector>

#include "base/status_macros.h"
#include "kernels/common/contract.h"
#include "kernels/common/log_decay.h"

namespace gdn {

absl::Status ValidateDecayMask(const DecayMaskParams& params) {
  constexpr char kOp[] = "DecayMask";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "batch", params.batch, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "size", params.size, 0, kMaxDecayMaskSize));
  if (params.batch == 0 || params.size == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "g_stride", params.g_stride, 1));
  if (params.batch > 1) GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "g_batch_stride", params.g_batch_stride, 1));
  return RequirePointer(kOp, "g", params.g);
}

void DecayMaskReference(const DecayMaskParams& params) {
  std::vector<double> sums(params.size);
  for (int64_t b = 0; b < params.batch; ++b) {
    double sum = 0.0;
    for (int32_t i = 0; i < params.size; ++i) {
      sum += ClampLogDecay(params.g[b * params.g_batch_stride + i * params.g_stride]);
      sums[i] = sum;
    }
    for (int32_t i = 0; i < params.size; ++i) {
      const int64_t row = b * params.size + i;
      if (params.from_start != nullptr) params.from_start[row] = static_cast<float>(std::exp(sums[i]));
      if (params.to_end != nullptr) params.to_end[row] = static_cast<float>(std::exp(sum - sums[i]));
      if (params.mask == nullptr) continue;
      for (int32_t j = 0; j < params.size; ++j) {
        params.mask[row * params.size + j] = j <= i ? static_cast<float>(std::exp(sums[i] - sums[j])) : 0.0f;
      }
    }
  }
}

}  // namespace gdn
