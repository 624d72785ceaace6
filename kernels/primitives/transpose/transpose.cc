#include "kernels/primitives/transpose/transpose.h"

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {

absl::Status ValidateTranspose(const TransposeParams& params) {
  constexpr char kOp[] = "Transpose";
  GDN_RETURN_IF_ERROR(RequireSizes(kOp, {{"batch", params.batch}, {"rows", params.rows}, {"cols", params.cols}}));
  if (params.batch == 0 || params.rows == 0 || params.cols == 0) return absl::OkStatus();
  return RequirePointers(kOp, {{"x", params.x}, {"y", params.y}});
}

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
