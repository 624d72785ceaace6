// What cases are measured on: a backend, the limits of what it runs on, and how runs are timed there.
//
// On a CPU runs are calls, timed by the clock. On a GPU they are launches: recorded once as a graph, replayed, and
// timed by events on the stream, so that what is reported is the device's time; the same launches made one by one and
// timed by the clock stand beside it.
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
#include "tools/gdn_bench/kernel_case.h"

namespace gdn::bench {

// A working set of this many last-level caches, visited in turn, is taken to come from memory.
inline constexpr int64_t kColdFactor = 4;

enum class TimingMethod { kCalls, kLaunches, kGraph };

// A case, warm, ready to be timed. A repetition is one run() on a CPU, a graph of one or more of them on a GPU.
class TimedCase {
 public:
  virtual ~TimedCase() = default;
  virtual TimingMethod method() const = 0;
  virtual int64_t steps_per_repetition() const = 0;
  // Seconds from the start of the first to the end of the last repetition.
  virtual absl::StatusOr<double> Time(int64_t repetitions) = 0;
  // The same work, launched anew and timed by the host's clock. The same as Time() for calls.
  virtual absl::StatusOr<double> TimeLaunches(int64_t repetitions) = 0;
};

struct Machine {
  std::unique_ptr<Backend> backend;
  // How fast it is, measured again whenever it is asked, so that a kernel's time can stand beside a limit taken at the
  // same moment: one pass of each loop, milliseconds on a GPU, tens of them on a CPU. The first time also makes and
  // checks the loops' buffers. Errors of the device.
  std::function<absl::StatusOr<MachineRates>()> measure_limits;
  // Errors of the case.
  std::function<absl::StatusOr<std::unique_ptr<TimedCase>>(const PreparedCase&)> load;
  int64_t last_level_cache_bytes = 0;
  int64_t rotation_bytes = 0;             // what memory-bound cases rotate over
  std::optional<gpu::DeviceInfo> device;  // of a GPU

  CaseSetting setting() const { return {.backend = *backend, .rotation_bytes = rotation_bytes}; }
};

// Threads as CpuBackendOptions has them.
absl::StatusOr<Machine> MakeCpuMachine(int threads);

// The backend of this build's GPU sources (gpu_backend.h). A build without them answers as MakeGpuBackend does.
absl::StatusOr<Machine> MakeGpuMachine(int device, const std::string& graphs);

}  // namespace gdn::bench
