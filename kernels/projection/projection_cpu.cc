#include "base/status_macros.h"
#include "kernels/projection/projection.h"
#include "kernels/projection/projection_paths.h"

namespace gdn {

absl::Status ProjectionCpu(const ProjectionParams& params, ThreadPool& pool) {
  GDN_RETURN_IF_ERROR(ValidateProjection(params));
  if (params.rows == 0 || params.weight.rows == 0) return absl::OkStatus();
  if (params.path == ProjectionPath::kSequenceGemm && params.rows >= GemmFromRows()) {
    return ProjectSequenceGemm(params, pool);
  }
  return ProjectRowStable(params, pool);
}

}  // namespace gdn
