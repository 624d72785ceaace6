#include "kernels/primitives/transpose/transpose.h"

namespace gdn {

void TransposeReference(const TransposeParams& params) {
  for (int64_t b = 0; b < params.batch; ++b) {
    const int64_t matrix = b * params.rows * params.cols;
    for (int64_t i = 0; i < params.rows; ++i) {
      for (int64_t j = 0; j < params.cols; ++j) {
        params.y[matrix + j * params.rows + i] = params.x[matrix + i * params.cols + j];
      }
    }
  }
}

}  // namespace gdn
