// gpu_backend.h in a build without GPU kernels.

#include "base/error.h"
#include "kernels/gpu_backend/gpu_backend.h"

namespace gdn {

std::string_view GpuBackendName() { return "gpu"; }

absl::StatusOr<std::unique_ptr<Backend>> MakeGpuBackend(const GpuBackendOptions& /*options*/) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kDeviceUnsupported,
                   "this build has no GPU kernels; build with 'cmake --preset hip-gfx906', or use --backend=cpu", {});
}

GpuGraphCounts GpuGraphCountsOf(Backend& /*backend*/) { return {}; }

absl::StatusOr<gpu::Stream> GpuStreamOf(Backend& /*backend*/) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kDeviceUnsupported, "this build has no GPU kernels", {});
}

absl::Status GpuIssueInOrderOf(Backend& backend, void* /*stream*/, absl::FunctionRef<absl::Status()> /*issue*/) {
  return GpuStreamOf(backend).status();
}

}  // namespace gdn
