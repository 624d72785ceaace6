#include "kernels/primitives/cumsum/cumsum.h"

namespace gdn {

void CumsumReference(const CumsumParams& params) {
  for (int64_t feature = 0; feature < params.features; ++feature) {
    double sum = 0.0;
    for (int64_t token = 0; token < params.tokens; ++token) {
      if (params.chunk > 0 && token % params.chunk == 0) sum = 0.0;
      sum += params.x[token * params.features + feature];
      params.y[token * params.features + feature] = static_cast<float>(sum);
    }
  }
}

}  // namespace gdn
