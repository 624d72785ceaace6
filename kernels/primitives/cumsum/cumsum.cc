#include "kernels/primitives/cumsum/cumsum.h"

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {

size_t CumsumWorkspaceBytes(const CumsumParams& params) {
  const int64_t tile = params.features == 1 ? kCumsumScalarTile : kCumsumVectorTile;
  // One block's tokens, or blocks that no chunk reaches across: nothing to hand on.
  if (params.tokens <= tile || (params.chunk > 0 && tile % params.chunk == 0)) return 0;
  return static_cast<size_t>((params.tokens + tile - 1) / tile * params.features) * sizeof(double);
}

absl::Status ValidateCumsum(const CumsumParams& params) {
  constexpr char kOp[] = "Cumsum";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "tokens", params.tokens, 0, kMaxCumsumTokens));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "features", params.features, 1, int64_t{1} << 20));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "chunk", params.chunk, 0, kMaxCumsumTokens));
  if (params.tokens == 0) return absl::OkStatus();
  return RequirePointers(kOp, {{"x", params.x}, {"y", params.y}});
}

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
