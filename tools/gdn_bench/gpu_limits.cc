#include "tools/gdn_bench/gpu_limits.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/gdn_bench/event_pair.h"

namespace gdn::bench {
namespace {

constexpr int64_t kLargestBuffer = int64_t{1} << 30;
constexpr int64_t kEmulatedBuffer = int64_t{1} << 20;  // the host executor takes its time
constexpr int kPasses = 2;                             // launches between two events
constexpr int64_t kMultiplyAddRounds = 256;            // about a millisecond
constexpr int64_t kEmulatedRounds = 2;

constexpr float kMultiplier = 0.5f;
constexpr float kAddend = 1.0f;
constexpr float kFixedPoint = kAddend / (1 - kMultiplier);
constexpr float kMeanOffset = (kGpuAccumulators - 1) / 2.0f;
constexpr int kCheckAttempts = 20;
constexpr double kDoubledWorkAtLeast = 1.6;
constexpr double kDoubledWorkAtMost = 2.4;

class GpuLimits final : public MachineLimits {
 public:
  GpuLimits(const gpu::DeviceInfo& device, const gpu::Stream& stream)
      : stream_(stream), emulated_(device.vendor == "host"), threads_(GpuLimitThreads(stream)) {
    const int64_t bytes = emulated_ ? kEmulatedBuffer : std::min(kLargestBuffer, device.free_bytes / 8);
    floats_ = bytes / static_cast<int64_t>(sizeof(float)) / kGpuTileFloats * kGpuTileFloats;
  }
  ~GpuLimits() override {
    static_cast<void>(gpu::SynchronizeStream(stream_));  // whoever measured has heard of a failure
    for (float* buffer : {first_, second_, results_}) {
      if (buffer != nullptr) gpu::DeviceFree(buffer);
    }
  }

  absl::Status Prepare() {
    GDN_ASSIGN_OR_RETURN(first_, Allocate(floats_));
    GDN_ASSIGN_OR_RETURN(second_, Allocate(floats_));
    GDN_ASSIGN_OR_RETURN(results_, Allocate(threads_));
    GDN_ASSIGN_OR_RETURN(events_, EventPair::Make(stream_));
    GDN_RETURN_IF_ERROR(CheckStreams());
    return CheckMultiplyAdds();
  }

  absl::StatusOr<MachineRates> Measure() override {
    const double bytes = static_cast<double>(floats_) * sizeof(float);
    MachineRates rates;
    GDN_ASSIGN_OR_RETURN(double seconds, Seconds([&] { return StreamReadGpu(first_, floats_, results_, stream_); }));
    rates.read_bytes_per_s = bytes / seconds;
    GDN_ASSIGN_OR_RETURN(seconds, Seconds([&] { return StreamCopyGpu(first_, second_, floats_, stream_); }));
    rates.copy_bytes_per_s = 2 * bytes / seconds;
    GDN_ASSIGN_OR_RETURN(seconds, Seconds([&] { return StreamUpdateGpu(first_, floats_, 1.0f, stream_); }));
    rates.update_bytes_per_s = 2 * bytes / seconds;
    const int64_t rounds = emulated_ ? kEmulatedRounds : kMultiplyAddRounds;
    GDN_ASSIGN_OR_RETURN(seconds, MultiplyAddSeconds(rounds));
    rates.flops_per_s = 2.0 * static_cast<double>(threads_ * rounds * kGpuStepsPerRound) * kGpuAccumulators / seconds;
    return rates;
  }

 private:
  static absl::StatusOr<float*> Allocate(int64_t floats) {
    GDN_ASSIGN_OR_RETURN(void* data, gpu::DeviceMalloc(static_cast<size_t>(floats) * sizeof(float)));
    return static_cast<float*>(data);
  }

  // Seconds of one launch.
  template <typename Function>
  absl::StatusOr<double> Seconds(Function&& launch) {
    const int passes = emulated_ ? 1 : kPasses;
    GDN_RETURN_IF_ERROR(events_->Begin());
    for (int pass = 0; pass < passes; ++pass) GDN_RETURN_IF_ERROR(launch());
    GDN_ASSIGN_OR_RETURN(const double seconds, events_->EndSeconds());
    return std::max(seconds, 1e-9) / passes;
  }

  absl::StatusOr<double> MultiplyAddSeconds(int64_t rounds) {
    return Seconds([&] { return MultiplyAddsGpu(rounds, kMultiplier, kAddend, results_, stream_); });
  }

  // results_, of every thread.
  absl::StatusOr<std::vector<float>> Results() {
    std::vector<float> results(static_cast<size_t>(threads_));
    GDN_RETURN_IF_ERROR(gpu::CopyToHost(results.data(), results_, results.size() * sizeof(float), stream_));
    GDN_RETURN_IF_ERROR(gpu::SynchronizeStream(stream_));
    return results;
  }

  absl::Status ExpectSum(const char* loop, const float* data, double expected) {
    GDN_RETURN_IF_ERROR(StreamReadGpu(data, floats_, results_, stream_));
    GDN_ASSIGN_OR_RETURN(const std::vector<float> sums, Results());
    double sum = 0;
    for (const float x : sums) sum += x;
    if (sum == expected) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("the ", loop, " loop left elements that sum up to ", sum, " instead of ", expected));
  }

  // Every loop changes the sum, so no element that it misses goes unseen; all sums are exact.
  absl::Status CheckStreams() {
    const double count = static_cast<double>(floats_);
    GDN_RETURN_IF_ERROR(StreamFillGpu(first_, floats_, 0.5f, stream_));
    GDN_RETURN_IF_ERROR(StreamFillGpu(second_, floats_, 0.125f, stream_));
    GDN_RETURN_IF_ERROR(ExpectSum("read", first_, 0.5 * count));
    GDN_RETURN_IF_ERROR(StreamUpdateGpu(first_, floats_, 2.0f, stream_));
    GDN_RETURN_IF_ERROR(ExpectSum("update", first_, count));
    GDN_RETURN_IF_ERROR(StreamCopyGpu(first_, second_, floats_, stream_));
    return ExpectSum("copy", second_, count);
  }

  absl::Status CheckMultiplyAdds() {
    for (const auto& [rounds, expected] : {std::pair(int64_t{1}, kFixedPoint + kMeanOffset / (1 << kGpuStepsPerRound)),
                                           std::pair(int64_t{2}, kFixedPoint)}) {
      GDN_RETURN_IF_ERROR(MultiplyAddsGpu(rounds, kMultiplier, kAddend, results_, stream_));
      GDN_ASSIGN_OR_RETURN(const std::vector<float> means, Results());
      for (const float mean : means) {
        if (mean != expected) {
          return absl::InternalError(absl::StrCat(rounds * kGpuStepsPerRound, " steps of multiply-adds gave ", mean,
                                                  " instead of ", expected));
        }
      }
    }
    if (emulated_) return absl::OkStatus();
    double ratio = 0;
    for (int attempt = 0; attempt < kCheckAttempts; ++attempt) {  // the first ones while the clocks rise
      GDN_ASSIGN_OR_RETURN(const double once, MultiplyAddSeconds(kMultiplyAddRounds));
      GDN_ASSIGN_OR_RETURN(const double twice, MultiplyAddSeconds(2 * kMultiplyAddRounds));
      ratio = twice / once;
      if (ratio >= kDoubledWorkAtLeast && ratio <= kDoubledWorkAtMost) return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat("twice the multiply-adds took ", ratio,
                                            " times as long, not about 2: the device is too busy to be measured"));
  }

  // Constant after construction and Prepare().
  const gpu::Stream stream_;
  const bool emulated_;
  const int64_t threads_;
  int64_t floats_ = 0;  // of each buffer
  float* first_ = nullptr;
  float* second_ = nullptr;
  float* results_ = nullptr;  // [threads_]
  std::unique_ptr<EventPair> events_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MachineLimits>> MakeGpuLimits(const gpu::DeviceInfo& device, const gpu::Stream& stream) {
  auto limits = std::make_unique<GpuLimits>(device, stream);
  GDN_RETURN_IF_ERROR(limits->Prepare());
  return limits;
}

}  // namespace gdn::bench
