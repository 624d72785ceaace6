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

// The executor, with waves and a grid of its own.
std::unique_ptr<Backend> MakeExecutor(const char* wave_width, const char* processors) {
  setenv("GDN_HOST_WAVE_WIDTH", wave_width, /*overwrite=*/1);
  setenv("GDN_HOST_PROCESSORS", processors, /*overwrite=*/1);
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeGpuBackend({});
  unsetenv("GDN_HOST_PROCESSORS");
  return *std::move(backend);
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

std::vector<std::string> HostBackends() {
#ifdef GDN_TEST_HOST_EXECUTOR
  return {"cpu", "host64", "host32"};
#else
  return {"cpu"};
#endif
}

std::unique_ptr<Backend> MakeHostBackend(const std::string& name) {
  if (name == "cpu") return *MakeCpuBackend({.threads = 2});
  return MakeExecutor(name == "host64" ? "64" : "32", "2");
}

std::vector<std::unique_ptr<Backend>> BackendsOfTheSameBits(const std::string& name) {
  std::vector<std::unique_ptr<Backend>> others;
  if (name == "cpu") {
    for (const int threads : {1, 3, 5}) others.push_back(*MakeCpuBackend({.threads = threads}));
  } else {
    others.push_back(MakeExecutor(name == "host64" ? "64" : "32", "1"));
    others.push_back(MakeExecutor(name == "host64" ? "32" : "64", "200"));
  }
  return others;
}

}  // namespace gdn
