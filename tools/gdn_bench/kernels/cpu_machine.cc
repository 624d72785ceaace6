// A CPU as a machine to measure on. Its limits: loops in its widest vectors on every thread, on memory that its caches
// do not hold. Its timer: calls, by the clock.
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/threads/thread_pool.h"
#include "kernels/cpu/cpu_backend.h"
#include "tools/gdn_bench/kernels/machine.h"
#include "tools/gdn_bench/kernels/machine_kernels.h"
#include "tools/gdn_bench/statistics.h"

namespace gdn::bench {
namespace {

constexpr int64_t kFallbackCacheBytes = int64_t{32} << 20;

std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "32768K" -> bytes; 0 where it is not a size.
int64_t ParseCacheSize(absl::string_view text) {
  int64_t unit = 1;
  if (absl::ConsumeSuffix(&text, "K")) {
    unit = int64_t{1} << 10;
  } else if (absl::ConsumeSuffix(&text, "M")) {
    unit = int64_t{1} << 20;
  }
  int64_t value = 0;
  return absl::SimpleAtoi(text, &value) ? value * unit : 0;
}

// Bytes of all distinct last-level caches of this machine; 32 MiB where the system does not say. Under a hypervisor
// this is what the guest is told.
int64_t LastLevelCacheBytes() {
  int last_level = 0;
  std::map<std::string, int64_t> caches;  // by the processors that share one
  const unsigned processors = std::thread::hardware_concurrency();
  for (unsigned cpu = 0; cpu < processors; ++cpu) {
    for (int index = 0;; ++index) {
      const std::string folder = absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/cache/index", index, "/");
      int level = 0;
      if (!absl::SimpleAtoi(ReadLine(folder + "level"), &level)) break;
      if (ReadLine(folder + "type") == "Instruction" || level < last_level) continue;
      if (level > last_level) {
        last_level = level;
        caches.clear();
      }
      caches[ReadLine(folder + "shared_cpu_list")] = ParseCacheSize(ReadLine(folder + "size"));
    }
  }
  int64_t total = 0;
  for (const auto& [sharers, bytes] : caches) total += bytes;
  return total > 0 ? total : kFallbackCacheBytes;
}

constexpr size_t kSmallestBuffer = size_t{128} << 20;
constexpr size_t kLargestBuffer = size_t{512} << 20;
// A task's slice: large against the cost of handing it out, small enough that a thread that wakes late does not hold up
// the rest.
constexpr size_t kSliceBytes = size_t{4} << 20;
constexpr size_t kSliceFloats = kSliceBytes / sizeof(float);
static_assert(kSliceFloats % kStreamGrain == 0);

constexpr int64_t kMultiplyAddIterations = 100'000;  // a task of about a quarter of a millisecond
constexpr int64_t kTasksPerThread = 8;
// A ceiling is the best that was seen: the fastest of so many bursts counts. Another program's moment, or a clock still
// low from the loops on memory before, would lower it.
constexpr int kMultiplyAddBursts = 6;
// Volatile: nothing about the loops may be known when they are compiled.
const volatile float kMultiplier = 0.5f;
const volatile float kAddend = 1.0f;
const volatile float kFactor = 1.0f;
constexpr int kCheckAttempts = 1000;
constexpr double kDoubledWorkAtLeast = 1.6;
constexpr double kDoubledWorkAtMost = 2.4;

// Huge pages where the system grants them: the limit is the machine's, not its page tables'.
float* MapBuffer(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  madvise(data, bytes, MADV_HUGEPAGE);
  return static_cast<float*>(data);
}

// Has the result of a loop used, so that the loop is needed.
void Keep(float result) {
  volatile float kept = result;
  static_cast<void>(kept);
}

void KeepMultiplyAdds(int64_t iterations) { Keep(MultiplyAdds(iterations, kMultiplier, kAddend)); }

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double ThreadSecondsOf(int64_t iterations) {
  const double start = ThreadSeconds();
  KeepMultiplyAdds(iterations);
  return ThreadSeconds() - start;
}

// Owns its threads and two buffers well above the last-level cache.
class CpuLimits {
 public:
  CpuLimits(int threads, size_t buffer_bytes)
      : pool_(threads),
        buffer_bytes_(buffer_bytes),
        first_(MapBuffer(buffer_bytes)),
        second_(MapBuffer(buffer_bytes)) {}
  CpuLimits(const CpuLimits&) = delete;
  CpuLimits& operator=(const CpuLimits&) = delete;
  ~CpuLimits() {
    if (first_ != nullptr) munmap(first_, buffer_bytes_);
    if (second_ != nullptr) munmap(second_, buffer_bytes_);
  }

  absl::Status Prepare() {
    if (first_ == nullptr || second_ == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot map two buffers of ", buffer_bytes_, " bytes to measure bandwidth"));
    }
    // Untouched anonymous pages all read from one page of zeros, which would sit in the cache.
    std::fill_n(first_, buffer_bytes_ / sizeof(float), 1.0f);
    std::fill_n(second_, buffer_bytes_ / sizeof(float), 1.0f);
    GDN_RETURN_IF_ERROR(CheckMultiplyAdds());
    Measure();  // brings threads and clocks up
    return absl::OkStatus();
  }

  MachineRates Measure() {
    const double bytes = static_cast<double>(buffer_bytes_);
    const auto seconds_of_slices = [this](const auto& loop) {
      const double start = NowSeconds();
      pool_.ParallelFor(static_cast<int64_t>(buffer_bytes_ / kSliceBytes),
                        [&](int64_t slice, int) { loop(static_cast<size_t>(slice) * kSliceFloats); });
      return NowSeconds() - start;
    };
    MachineRates rates;
    rates.read_bytes_per_s =
        bytes / seconds_of_slices([this](size_t at) { Keep(ReadStreams(first_ + at, kSliceFloats)); });
    rates.copy_bytes_per_s =
        2 * bytes / seconds_of_slices([this](size_t at) { CopyStreams(first_ + at, second_ + at, kSliceFloats); });
    rates.update_bytes_per_s = 2 * bytes / seconds_of_slices([this, factor = float{kFactor}](size_t at) {
                                 UpdateInPlace(first_ + at, kSliceFloats, factor);
                               });
    const double flops =
        static_cast<double>(pool_.threads() * kTasksPerThread * kMultiplyAddIterations * FlopsPerIteration());
    double seconds = std::numeric_limits<double>::infinity();
    for (int burst = 0; burst < kMultiplyAddBursts; ++burst) {
      seconds = std::min(seconds, MultiplyAddSeconds(kMultiplyAddIterations));
    }
    rates.flops_per_s = flops / seconds;
    return rates;
  }

 private:
  absl::Status CheckMultiplyAdds() {
    for (const auto& [iterations, expected] :
         {std::pair(int64_t{3}, 2.0f + 5.5f / 8), std::pair(kMultiplyAddIterations, 2.0f)}) {
      const float result = MultiplyAdds(iterations, kMultiplier, kAddend);
      if (result != expected) {
        return absl::InternalError(
            absl::StrCat(iterations, " iterations of multiply-adds gave ", result, " instead of ", expected));
      }
    }
    // In this thread's own time, so that what else runs here does not count; a neighbour on the same core still may,
    // for some attempts.
    double once = std::numeric_limits<double>::infinity();
    double twice = once;
    for (int attempt = 0; attempt < kCheckAttempts; ++attempt) {
      once = std::min(once, ThreadSecondsOf(kMultiplyAddIterations));
      twice = std::min(twice, ThreadSecondsOf(2 * kMultiplyAddIterations));
      if (twice >= kDoubledWorkAtLeast * once && twice <= kDoubledWorkAtMost * once) return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat("twice the multiply-adds took ", twice / once,
                                            " times as long, not about 2: they are not what is measured"));
  }

  double MultiplyAddSeconds(int64_t iterations_per_task) {
    const double start = NowSeconds();
    pool_.ParallelFor(pool_.threads() * kTasksPerThread, [&](int64_t, int) { KeepMultiplyAdds(iterations_per_task); });
    return NowSeconds() - start;
  }

  ThreadPool pool_;
  const size_t buffer_bytes_;
  float* const first_;
  float* const second_;
};

// `threads` as the kernels use. RESOURCE_EXHAUSTED where the buffers cannot be had; INTERNAL where the multiply-add
// loop does not give the right number or does not take twice as long for twice the work (so a compiler cannot have
// removed it).
absl::StatusOr<std::shared_ptr<CpuLimits>> MakeCpuLimits(int threads) {
  size_t bytes = std::clamp(static_cast<size_t>(kColdFactor * LastLevelCacheBytes()), kSmallestBuffer, kLargestBuffer);
  bytes -= bytes % kSliceBytes;
  auto limits = std::make_shared<CpuLimits>(threads, bytes);
  GDN_RETURN_IF_ERROR(limits->Prepare());
  return limits;
}

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

}  // namespace

absl::StatusOr<Machine> MakeCpuMachine(int threads, ProductMath math) {
  Machine machine;
  GDN_ASSIGN_OR_RETURN(machine.backend, MakeCpuBackend({.threads = threads, .math = math}));
  const int used_threads = std::max(1, machine.backend->info().threads);
  machine.measure_limits = [used_threads,
                            limits = std::shared_ptr<CpuLimits>()]() mutable -> absl::StatusOr<MachineRates> {
    if (limits == nullptr) {
      GDN_ASSIGN_OR_RETURN(limits, MakeCpuLimits(used_threads));
    }
    return limits->Measure();
  };
  machine.load = [&backend = *machine.backend](const auto& prepared) -> absl::StatusOr<std::unique_ptr<TimedCase>> {
    GDN_RETURN_IF_ERROR(prepared.run());
    GDN_RETURN_IF_ERROR(backend.Synchronize());
    return std::make_unique<TimedCalls>(backend, prepared);
  };
  machine.last_level_cache_bytes = LastLevelCacheBytes();
  machine.rotation_bytes = std::min(kColdFactor * machine.last_level_cache_bytes, kLargestRotation);
  return machine;
}

}  // namespace gdn::bench
