// MakeGpuMachine in a build without GPU kernels.
#include "absl/status/status.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tools/gdn_bench/kernels/machine.h"

namespace gdn::bench {

absl::StatusOr<Machine> MakeGpuMachine(int device, const std::string& /*graphs*/, const std::string& /*matrix_units*/,
                                       ProductMath /*math*/) {
  const auto backend = MakeGpuBackend({.device = device});
  return backend.ok() ? absl::InternalError("a GPU backend in a build without GPU kernels") : backend.status();
}

}  // namespace gdn::bench
