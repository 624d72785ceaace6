#include "tests/support/test_backend.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/gpu_backend/gpu_backend.h"

namespace gdn {
namespace {

absl::StatusOr<std::unique_ptr<Backend>> MakeNamed(const std::string& name, int threads) {
  if (name == "cpu") return MakeCpuBackend({.threads = threads});
  if (name == GpuBackendName()) return MakeGpuBackend({});
  return absl::InvalidArgumentError("GDN_TEST_BACKEND is '" + name + "'; this build has cpu and " +
                                    std::string(GpuBackendName()));
}

}  // namespace

std::string TestBackendName() {
  const char* name = std::getenv("GDN_TEST_BACKEND");
  return name == nullptr ? "cpu" : name;
}

std::unique_ptr<Backend> MakeTestBackend(int threads) {
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeNamed(TestBackendName(), threads);
  if (backend.ok()) return *std::move(backend);
  std::fprintf(stderr, "test backend: %s\n", std::string(backend.status().message()).c_str());
  std::abort();
}

}  // namespace gdn
