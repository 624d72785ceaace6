// The machine that cases are measured on: a backend, its limits, and how runs are timed.
//
// On a CPU, runs are calls that the clock times. On a GPU, runs are recorded as a graph and replayed, and events on the
// stream time them, so the report has the device's time. For comparison, the same launches are also made one by one and
// timed by the clock.
// Thread safety: one thread at a time. Ownership: a Machine owns its parts; a TimedCase must not outlive the machine
// nor the prepared case.
//
//   GDN_ASSIGN_OR_RETURN(Machine machine, MakeCpuMachine(/*threads=*/0));
//   GDN_ASSIGN_OR_RETURN(PreparedCase prepared, c.prepare(machine.setting()));
//   GDN_ASSIGN_OR_RETURN(auto timed, machine.load(prepared));
//   GDN_ASSIGN_OR_RETURN(double seconds, timed->Time(10));
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/gpu/runtime.h"
#include "tools/gdn_bench/kernels/kernel_case.h"

namespace gdn::bench {

// A case counts as reading from memory if its working set, visited in turn, is at least this many last-level caches.
inline constexpr int64_t kColdFactor = 4;

enum class TimingMethod { kCalls, kLaunches, kGraph };

// A case that is ready to be timed. A repetition is one run() on a CPU, or the replay of a graph of one or more runs on
// a GPU.
class TimedCase {
 public:
  virtual ~TimedCase() = default;
  virtual TimingMethod method() const = 0;
  virtual int64_t steps_per_repetition() const = 0;
  // Returns the seconds from the start of the first to the end of the last repetition.
  virtual absl::StatusOr<double> Time(int64_t repetitions) = 0;
  // Times the same work with single launches and the host's clock. If method() is kCalls, does the same as Time().
  virtual absl::StatusOr<double> TimeLaunches(int64_t repetitions) = 0;
};

struct Machine {
  std::unique_ptr<Backend> backend;
  // Measures the machine's rates now, so that a kernel's time can be compared with a limit of the same moment. Takes
  // milliseconds on a GPU and tens of milliseconds on a CPU. The first call also makes and checks the buffers. Errors
  // of the device; RESOURCE_EXHAUSTED without memory for the buffers, INTERNAL if a loop computes or scales wrongly.
  std::function<absl::StatusOr<MachineRates>()> measure_limits;
  // Warms a case up, so that it can be timed. The prepared case must outlive the result. Errors of the case.
  std::function<absl::StatusOr<std::unique_ptr<TimedCase>>(const PreparedCase&)> load;
  int64_t last_level_cache_bytes = 0;
  int64_t rotation_bytes = 0;             // bytes that memory-bound cases rotate over
  std::optional<gpu::DeviceInfo> device;  // nullopt for a CPU

  CaseSetting setting() const { return {.backend = *backend, .rotation_bytes = rotation_bytes}; }
};

// Makes the CPU's machine with this number of threads; 0: one for each processor that this process may use. `math`: how
// its layers multiply. Errors of MakeCpuBackend.
absl::StatusOr<Machine> MakeCpuMachine(int threads, ProductMath math = ProductMath::kExact);

// Makes the machine of a GPU, with the backend of this build's GPU sources (gpu_backend.h). `device`: index among the
// devices that HIP_VISIBLE_DEVICES leaves. INVALID_ARGUMENT if `graphs` is not "auto", "on" or "off", or
// `matrix_units` not "auto" or "off". Errors of MakeGpuBackend, also in builds without GPU sources.
absl::StatusOr<Machine> MakeGpuMachine(int device, const std::string& graphs, const std::string& matrix_units,
                                       ProductMath math = ProductMath::kExact);

}  // namespace gdn::bench
