// Measures the time of a call's kernels alone, on the backend that serves the call. A round trip cannot be shorter.
//
// Measures as `gdn_bench kernel` does: on a GPU with a recorded graph and events, on a CPU with the clock; 0 for the
// null backend. Thread safety: one thread, while no server computes. Ownership: owns its own backend.
//
//   GDN_ASSIGN_OR_RETURN(KernelTimes kernels, KernelTimes::Make("gpu", {.gpu_device = 0}));
//   GDN_ASSIGN_OR_RETURN(auto times, kernels.Of(load, /*clients=*/64, /*segment=*/false));
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "tools/gdn_bench/kernels/kernel_case.h"
#include "tools/gdn_bench/kernels/machine.h"
#include "tools/gdn_bench/serve/serve_calls.h"
#include "tools/gdn_bench/serve/serve_ratios.h"

namespace gdn::bench {

struct KernelTimesOptions {
  int gpu_device = 0;
  int threads = 0;  // number of CPU threads; 0: one for each processor
};

class KernelTimes {
 public:
  // Makes the backend that the kernels are measured on. `backend`: the name that the server reports. INVALID_ARGUMENT
  // if this program has no such backend. Errors of making the backend.
  static absl::StatusOr<KernelTimes> Make(const std::string& backend, const KernelTimesOptions& options);

  // Returns the times of the load's kernels, zeros for the null backend; measures each case once. Measures segment_s
  // only if `segment` is true. nullopt if no case matches the load: a hidden size other than that of BenchLayerDims, a
  // Decode of several tokens, or a Step. `clients`: number of clients whose calls may merge in a launch.
  absl::StatusOr<std::optional<KernelSeconds>> Of(const Workload& load, int clients, bool segment);

 private:
  explicit KernelTimes(std::unique_ptr<Machine> machine) : machine_(std::move(machine)) {}
  absl::StatusOr<double> StepSeconds(const KernelCase& kernel_case);

  std::unique_ptr<Machine> machine_;  // nullptr for the null backend
  std::map<std::string, double> seconds_;
};

}  // namespace gdn::bench
