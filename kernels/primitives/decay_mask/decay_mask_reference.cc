#include <cmath>
#include <vector>

#include "kernels/primitives/decay_mask/decay_mask.h"

namespace gdn {

void DecayMaskReference(const DecayMaskParams& params) {
  std::vector<double> sums(params.size);
  for (int64_t b = 0; b < params.batch; ++b) {
    double sum = 0.0;
    for (int32_t i = 0; i < params.size; ++i) {
      sum += params.g[b * params.g_batch_stride + i * params.g_stride];
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
