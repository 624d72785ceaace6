#include "kernels/primitives/masks/masks.h"

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

template <typename Params>
absl::Status ValidateMatrices(const char* op, const Params& params) {
  GDN_RETURN_IF_ERROR(RequireSizes(op, {{"batch", params.batch}, {"rows", params.rows}, {"cols", params.cols}}));
  if (params.batch == 0 || params.rows == 0 || params.cols == 0) return absl::OkStatus();
  return RequirePointer(op, "y", params.y);
}

// y[b][i][j] = function(i, j, its offset).
template <typename Params, typename Function>
void Fill(const Params& params, const Function& function) {
  for (int64_t at = 0; at < params.batch * params.rows * params.cols; ++at) {
    params.y[at] = static_cast<float>(function(at / params.cols % params.rows, at % params.cols, at));
  }
}

}  // namespace

absl::Status ValidateTril(const TrilParams& params) {
  constexpr char kOp[] = "Tril";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "diagonal", params.diagonal, -kMaxOperatorRows, kMaxOperatorRows));
  return ValidateMatrices(kOp, params);
}

absl::Status ValidateIdentity(const IdentityParams& params) {
  constexpr char kOp[] = "Identity";
  if (params.sign != 1.0f && params.sign != -1.0f) {
    return InvalidField(kOp, "sign", "sign is ", params.sign, "; expected 1 or -1");
  }
  return ValidateMatrices(kOp, params);
}

void TrilReference(const TrilParams& params) {
  Fill(params, [&](int64_t i, int64_t j, int64_t at) -> double {
    if (j > i + params.diagonal) return 0.0;
    return params.x == nullptr ? 1.0 : params.x[at];
  });
}

void IdentityReference(const IdentityParams& params) {
  Fill(params, [&](int64_t i, int64_t j, int64_t at) {
    const double identity = i == j ? 1.0 : 0.0;
    return params.x == nullptr ? identity : identity + double{params.sign} * double{params.x[at]};
  });
}

}  // namespace gdn
