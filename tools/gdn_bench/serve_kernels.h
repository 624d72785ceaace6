// How long the kernels of a call take by themselves, on the backend that serves it: what a round trip cannot be shorter
// than.
//
// Measured as `gdn_bench kernel` does: a recorded graph timed by events on a GPU, calls by the clock on a CPU; the null
// backend has none. Thread safety: one thread, while no server computes. Ownership: owns a backend of its own.
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
#include "tools/gdn_bench/kernel_case.h"
#include "tools/gdn_bench/machine.h"
#include "tools/gdn_bench/serve_calls.h"
#include "tools/gdn_bench/serve_ratios.h"

namespace gdn::bench {

struct KernelTimesOptions {
  int gpu_device = 0;
  int threads = 0;  // of the CPU
};

class KernelTimes {
 public:
  // `backend` is the name that the server gives. INVALID_ARGUMENT where this program has no such backend; errors of
  // making it.
  static absl::StatusOr<KernelTimes> Make(const std::string& backend, const KernelTimesOptions& options);

  // nullopt where no case stands for the load: other dimensions than BenchLayerDims, or a Decode of several tokens.
  // Measures what it has not measured before; segment_s only where it is wanted.
  absl::StatusOr<std::optional<KernelSeconds>> Of(const Workload& load, int clients, bool segment);

 private:
  explicit KernelTimes(std::unique_ptr<Machine> machine) : machine_(std::move(machine)) {}
  absl::StatusOr<double> StepSeconds(const KernelCase& kernel_case);

  std::unique_ptr<Machine> machine_;  // nullptr: nothing is computed
  std::map<std::string, double> seconds_;
};

}  // namespace gdn::bench
