#include "kernels/primitives/masks/masks.h"

namespace gdn {
namespace {

// y[b][i][j] = function(i, j, its offset).
template <typename Function>
void Fill(int64_t batch, int64_t rows, int64_t cols, float* y, const Function& function) {
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        const int64_t at = (b * rows + i) * cols + j;
        y[at] = static_cast<float>(function(i, j, at));
      }
    }
  }
}

}  // namespace

void TrilReference(const TrilParams& params) {
  Fill(params.batch, params.rows, params.cols, params.y, [&](int64_t i, int64_t j, int64_t at) -> double {
    if (j > i + params.diagonal) return 0.0;
    return params.x == nullptr ? 1.0 : params.x[at];
  });
}

void CausalMaskReference(const CausalMaskParams& params) {
  Fill(params.batch, params.size, params.size, params.y, [&](int64_t i, int64_t j, int64_t at) -> double {
    if (j >= i) return 0.0;
    return params.x == nullptr ? 1.0 : params.x[at];
  });
}

void EyeReference(const EyeParams& params) {
  Fill(params.batch, params.rows, params.cols, params.y,
       [](int64_t i, int64_t j, int64_t) { return i == j ? 1.0 : 0.0; });
}

void ApplyIdentityReference(const ApplyIdentityParams& params) {
  Fill(params.batch, params.size, params.size, params.y, [&](int64_t i, int64_t j, int64_t at) {
    return (i == j ? 1.0 : 0.0) + double{params.sign} * double{params.x[at]};
  });
}

}  // namespace gdn
