#include "base/status_macros.h"
#include "kernels/projection/projection.h"
#include "kernels/projection/projection_paths.h"

namespace gdn {
namespace {

// Rows below which reading W once, row by row of x in registers, beats packing W for a GEMM. A function of this call's rows only.
constexpr int64_t kGemmFromRows = 16;

}  // namespace

absl::Status ProjectionCpu(const ProjectionParams& params, ThreadPool& pool) {
  GDN_RETURN_IF_ERROR(ValidateProjection(params));
  if (params.rows == 0 || params.weight.rows == 0) return absl::OkStatus();
  if (params.path == ProjectionPath::kSequenceGemm && params.rows >= kGemmFromRows) {
    return ProjectSequenceGemm(params, pool);
  }
  return ProjectRowStable(params, pool);
}

}  // namespace gdn
