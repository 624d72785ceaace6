// A CPU as a machine to measure on.
#include <algorithm>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "kernels/cpu/cpu_backend.h"
#include "tools/gdn_bench/cache_size.h"
#include "tools/gdn_bench/clock.h"
#include "tools/gdn_bench/cpu_limits.h"
#include "tools/gdn_bench/machine.h"

namespace gdn::bench {
namespace {

class TimedCalls final : public TimedCase {
 public:
  TimedCalls(Backend& backend, const PreparedCase& prepared) : backend_(backend), prepared_(prepared) {}

  TimingMethod method() const override { return TimingMethod::kCalls; }
  int64_t steps_per_repetition() const override { return prepared_.steps; }
  absl::StatusOr<double> Time(int64_t repetitions) override {
    const double start = NowSeconds();
    for (int64_t i = 0; i < repetitions; ++i) GDN_RETURN_IF_ERROR(prepared_.run());
    GDN_RETURN_IF_ERROR(backend_.Synchronize());
    return NowSeconds() - start;
  }
  absl::StatusOr<double> TimeLaunches(int64_t repetitions) override { return Time(repetitions); }

 private:
  Backend& backend_;
  const PreparedCase& prepared_;
};

class CallTimer final : public CaseTimer {
 public:
  explicit CallTimer(Backend& backend) : backend_(backend) {}
  absl::StatusOr<std::unique_ptr<TimedCase>> Load(const PreparedCase& prepared) override {
    GDN_RETURN_IF_ERROR(prepared.run());
    GDN_RETURN_IF_ERROR(backend_.Synchronize());
    return std::make_unique<TimedCalls>(backend_, prepared);
  }

 private:
  Backend& backend_;
};

}  // namespace

absl::StatusOr<Machine> MakeCpuMachine(int threads) {
  Machine machine;
  GDN_ASSIGN_OR_RETURN(machine.backend, MakeCpuBackend({.threads = threads}));
  GDN_ASSIGN_OR_RETURN(machine.limits, MakeCpuLimits(std::max(1, machine.backend->info().threads)));
  machine.timer = std::make_unique<CallTimer>(*machine.backend);
  machine.last_level_cache_bytes = LastLevelCacheBytes();
  machine.rotation_bytes = std::min(kColdFactor * machine.last_level_cache_bytes, kLargestRotation);
  return machine;
}

}  // namespace gdn::bench
