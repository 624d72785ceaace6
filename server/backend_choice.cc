#include "server/backend_choice.h"

#include <string>

#include <spdlog/spdlog.h>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/null/null_backend.h"

namespace gdn {

absl::StatusOr<std::unique_ptr<Backend>> ChooseBackend(const ServerOptions& options) {
  if (options.backend == "null") return MakeNullBackend();
  if (options.backend == "cpu") return MakeCpuBackend({.threads = options.threads});
  absl::StatusOr<std::unique_ptr<Backend>> gpu = MakeGpuBackend({.device = options.gpu_device});
  if (gpu.ok() || options.backend == "gpu") return gpu;
  spdlog::info("computing on the CPU: {}", std::string(gpu.status().message()));
  return MakeCpuBackend({.threads = options.threads});
}

}  // namespace gdn
