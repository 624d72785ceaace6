#include "tests/support/test_backend.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/status_macros.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/null/null_backend.h"
#include "tests/support/host_memory_backend.h"

namespace gdn {
namespace {

absl::StatusOr<std::unique_ptr<Backend>> MakeNamed(const std::string& name, int threads, ProductMath math) {
  if (name == "cpu") return MakeCpuBackend({.threads = threads, .math = math});
  if (name == GpuBackendName()) return MakeGpuBackend({.math = math});
  return absl::InvalidArgumentError("GDN_TEST_BACKEND is '" + name + "'; this build has cpu and " +
                                    std::string(GpuBackendName()));
}

class ReferenceBackend final : public HostMemoryBackend {
 public:
  ReferenceBackend() : HostMemoryBackend(/*unified_memory=*/true) {}

  absl::Status DeltaRuleScan(const DeltaRuleParams& params) override {
    GDN_RETURN_IF_ERROR(ValidateDeltaRule(params));
    DeltaRuleScanReference(params);
    return absl::OkStatus();
  }
  absl::Status DeltaRuleChunk(const DeltaRuleParams& params) override { return DeltaRuleScan(params); }
  absl::Status DeltaRuleDecode(const DeltaRuleDecodeParams& params) override {
    GDN_RETURN_IF_ERROR(ValidateDeltaRuleDecode(params));
    DeltaRuleDecodeReference(params);
    return absl::OkStatus();
  }
  absl::Status MaterializeState(const MaterializeStateParams& params) override {
    GDN_RETURN_IF_ERROR(ValidateMaterializeState(params));
    MaterializeStateReference(params);
    return absl::OkStatus();
  }
};

// The executor, with waves and a grid of its own.
absl::StatusOr<std::unique_ptr<Backend>> MakeExecutor(const std::string& name, const char* processors,
                                                      ProductMath math = ProductMath::kExact) {
  setenv("GDN_HOST_WAVE_WIDTH", name == "host64" ? "64" : "32", /*overwrite=*/1);
  setenv("GDN_HOST_PROCESSORS", processors, /*overwrite=*/1);
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeGpuBackend({.math = math});
  unsetenv("GDN_HOST_PROCESSORS");
  return backend;
}

}  // namespace

std::string TestBackendName() {
  const char* name = std::getenv("GDN_TEST_BACKEND");
  return name == nullptr ? "cpu" : name;
}

std::unique_ptr<Backend> MakeTestBackend(int threads, ProductMath math) {
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeNamed(TestBackendName(), threads, math);
  if (backend.ok()) return *std::move(backend);
  std::fprintf(stderr, "test backend: %s\n", std::string(backend.status().message()).c_str());
  std::abort();
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const std::string& name, ProductMath math) {
  if (name == "cpu") return MakeCpuBackend({.threads = 2, .math = math});
  if (name == "null") return MakeNullBackend();
  if (name == "reference") return std::make_unique<ReferenceBackend>();
  return name == "gpu" ? MakeGpuBackend({.math = math}) : MakeExecutor(name, "2", math);
}

std::vector<std::string> WithGpus(std::vector<std::string> names) {
  if (GpuBackendName() != "host") {
    names.emplace_back("gpu");
  } else {
    names.insert(names.end(), {"host64", "host32"});
  }
  return names;
}

std::vector<std::string> WithOneGpu(std::vector<std::string> names) {
  const bool units = std::getenv("GDN_HOST_MATRIX_UNITS") != nullptr;
  names.emplace_back(GpuBackendName() != "host" ? "gpu" : units ? "host32" : "host64");
  return names;
}

std::vector<std::string> HostBackends() {
#ifdef GDN_TEST_HOST_EXECUTOR
  if (std::getenv("GDN_HOST_STREAMS_SEED") == nullptr) return WithGpus({"cpu"});
#endif
  return {"cpu"};
}

std::vector<std::unique_ptr<Backend>> BackendsOfTheSameBits(const std::string& name, bool any_wave) {
  std::vector<std::unique_ptr<Backend>> others;
  if (name == "cpu") {
    for (const int threads : {1, 3, 5}) others.push_back(*MakeCpuBackend({.threads = threads}));
  } else {
    others.push_back(*MakeExecutor(name, "1"));
    // Only waves of 32 have matrix units, with an order of sums of their own.
    const bool units = std::getenv("GDN_HOST_MATRIX_UNITS") != nullptr;
    const std::string other_wave = name == "host64" ? "host32" : "host64";
    others.push_back(*MakeExecutor(any_wave && !units ? other_wave : name, "200"));
  }
  return others;
}

}  // namespace gdn
