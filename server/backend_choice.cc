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

int64_t StateBudgetBytes(const ServerOptions& options, Backend& backend, int64_t slot_bytes) {
  if (options.state_slots > 0) return options.state_slots * slot_bytes;
  if (options.device_state_bytes > 0) return options.device_state_bytes;
  if (backend.info().lazy_memory) return backend.info().memory_bytes / 2;
  // The last quarter is for workspaces, spare slots and the runtime itself.
  return backend.FreeMemoryBytes() / 4 * 3;
}

}  // namespace gdn
