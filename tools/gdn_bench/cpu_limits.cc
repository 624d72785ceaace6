#include "tools/gdn_bench/cpu_limits.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "tools/gdn_bench/cache_size.h"
#include "tools/gdn_bench/clock.h"
#include "tools/gdn_bench/machine_kernels.h"

namespace gdn::bench {
namespace {

constexpr size_t kSmallestBuffer = size_t{128} << 20;
constexpr size_t kLargestBuffer = size_t{512} << 20;
// A task's slice: large against the cost of handing it out, small enough that a thread that wakes late does not hold up
// the rest.
constexpr size_t kSliceBytes = size_t{4} << 20;
constexpr size_t kSliceFloats = kSliceBytes / sizeof(float);
static_assert(kSliceFloats % kStreamGrain == 0);

constexpr int64_t kMultiplyAddIterations = 100'000;  // a task of about a quarter of a millisecond
constexpr int64_t kTasksPerThread = 8;
// Volatile: nothing about the loops may be known when they are compiled.
const volatile float kMultiplier = 0.5f;
const volatile float kAddend = 1.0f;
const volatile float kFactor = 1.0f;
constexpr int kCheckAttempts = 100;
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

class CpuLimits final : public MachineLimits {
 public:
  CpuLimits(int threads, size_t buffer_bytes)
      : pool_(threads),
        buffer_bytes_(buffer_bytes),
        first_(MapBuffer(buffer_bytes)),
        second_(MapBuffer(buffer_bytes)) {}
  ~CpuLimits() override {
    if (first_ != nullptr) munmap(first_, buffer_bytes_);
    if (second_ != nullptr) munmap(second_, buffer_bytes_);
  }

  absl::Status Prepare();
  absl::StatusOr<MachineRates> Measure() override;

 private:
  absl::Status CheckMultiplyAdds();
  double MultiplyAddSeconds(int64_t iterations_per_task);

  ThreadPool pool_;
  const size_t buffer_bytes_;
  float* const first_;
  float* const second_;
};

absl::Status CpuLimits::Prepare() {
  if (first_ == nullptr || second_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map two buffers of ", buffer_bytes_, " bytes to measure bandwidth"));
  }
  // Untouched anonymous pages all read from one page of zeros, which would sit in the cache.
  std::fill_n(first_, buffer_bytes_ / sizeof(float), 1.0f);
  std::fill_n(second_, buffer_bytes_ / sizeof(float), 1.0f);
  GDN_RETURN_IF_ERROR(CheckMultiplyAdds());
  return Measure().status();  // brings threads and clocks up
}

double CpuLimits::MultiplyAddSeconds(int64_t iterations_per_task) {
  const float multiplier = kMultiplier;
  const float addend = kAddend;
  const double start = NowSeconds();
  pool_.ParallelFor(pool_.threads() * kTasksPerThread,
                    [&](int64_t, int) { Keep(MultiplyAdds(iterations_per_task, multiplier, addend)); });
  return NowSeconds() - start;
}

absl::Status CpuLimits::CheckMultiplyAdds() {
  for (const auto& [iterations, expected] :
       {std::pair(int64_t{3}, 2.0f + 5.5f / 8), std::pair(kMultiplyAddIterations, 2.0f)}) {
    const float result = MultiplyAdds(iterations, kMultiplier, kAddend);
    if (result != expected) {
      return absl::InternalError(
          absl::StrCat(iterations, " iterations of multiply-adds gave ", result, " instead of ", expected));
    }
  }
  double ratio = 0;
  for (int attempt = 0; attempt < kCheckAttempts; ++attempt) {  // a neighbour's burst may spoil a few
    const double once = MultiplyAddSeconds(kMultiplyAddIterations);
    const double twice = MultiplyAddSeconds(2 * kMultiplyAddIterations);
    ratio = twice / once;
    if (ratio >= kDoubledWorkAtLeast && ratio <= kDoubledWorkAtMost) return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("twice the multiply-adds took ", ratio,
                                          " times as long, not about 2: the machine is too busy to be measured"));
}

absl::StatusOr<MachineRates> CpuLimits::Measure() {
  const int64_t slices = static_cast<int64_t>(buffer_bytes_ / kSliceBytes);
  const double bytes = static_cast<double>(buffer_bytes_);
  MachineRates rates;

  double start = NowSeconds();
  pool_.ParallelFor(slices, [&](int64_t slice, int) {
    Keep(ReadStreams(first_ + static_cast<size_t>(slice) * kSliceFloats, kSliceFloats));
  });
  rates.read_bytes_per_s = bytes / (NowSeconds() - start);

  start = NowSeconds();
  pool_.ParallelFor(slices, [&](int64_t slice, int) {
    const size_t offset = static_cast<size_t>(slice) * kSliceFloats;
    CopyStreams(first_ + offset, second_ + offset, kSliceFloats);
  });
  rates.copy_bytes_per_s = 2 * bytes / (NowSeconds() - start);

  const float factor = kFactor;
  start = NowSeconds();
  pool_.ParallelFor(slices, [&](int64_t slice, int) {
    UpdateInPlace(first_ + static_cast<size_t>(slice) * kSliceFloats, kSliceFloats, factor);
  });
  rates.update_bytes_per_s = 2 * bytes / (NowSeconds() - start);

  const double flops =
      static_cast<double>(pool_.threads() * kTasksPerThread * kMultiplyAddIterations * FlopsPerIteration());
  rates.flops_per_s = flops / MultiplyAddSeconds(kMultiplyAddIterations);
  return rates;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MachineLimits>> MakeCpuLimits(int threads) {
  if (threads < 1)
    return absl::InvalidArgumentError(absl::StrCat("machine limits need at least 1 thread, not ", threads));
  size_t bytes = std::clamp(static_cast<size_t>(kColdFactor * LastLevelCacheBytes()), kSmallestBuffer, kLargestBuffer);
  bytes -= bytes % kSliceBytes;
  auto limits = std::make_unique<CpuLimits>(threads, bytes);
  GDN_RETURN_IF_ERROR(limits->Prepare());
  return limits;
}

}  // namespace gdn::bench
