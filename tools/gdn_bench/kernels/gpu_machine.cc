// A GPU as a machine to measure on. Its limits: streams of 16-byte accesses over buffers of 1 GiB (or an eighth of the
// free memory), and multiply-adds in registers, timed by events; memcpy is not among them: it can be well below a copy
// kernel. Its timer: runs are recorded as graphs and timed by events. Also the host executor, which records none.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/state_layout.h"
#include "kernels/gpu/runtime.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tools/gdn_bench/kernels/gpu_limits.h"
#include "tools/gdn_bench/kernels/machine.h"
#include "tools/gdn_bench/statistics.h"

namespace gdn::bench {
namespace {

// Two events on a stream: how long the device took for what was launched between them.
class EventPair {
 public:
  static absl::StatusOr<std::unique_ptr<EventPair>> Make(const gpu::Stream& stream) {
    auto pair = std::unique_ptr<EventPair>(new EventPair(stream));
    GDN_ASSIGN_OR_RETURN(pair->begin_, gpu::MakeTimedEvent());
    GDN_ASSIGN_OR_RETURN(pair->end_, gpu::MakeTimedEvent());
    return pair;
  }
  ~EventPair() {
    if (begin_ != nullptr) gpu::DestroyEvent(begin_);
    if (end_ != nullptr) gpu::DestroyEvent(end_);
  }
  EventPair(const EventPair&) = delete;
  EventPair& operator=(const EventPair&) = delete;

  absl::Status Begin() { return gpu::RecordEvent(begin_, stream_); }
  // Waits for what was launched since Begin().
  absl::StatusOr<double> EndSeconds() {
    GDN_RETURN_IF_ERROR(gpu::RecordEvent(end_, stream_));
    GDN_ASSIGN_OR_RETURN(const double microseconds, gpu::MicrosecondsBetween(begin_, end_));
    return microseconds / 1e6;
  }

 private:
  explicit EventPair(const gpu::Stream& stream) : stream_(stream) {}

  const gpu::Stream stream_;
  gpu::Event begin_ = nullptr;
  gpu::Event end_ = nullptr;
};

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

// Owns its device memory; must not outlive the stream.
class GpuLimits {
 public:
  GpuLimits(const gpu::DeviceInfo& device, const gpu::Stream& stream)
      : stream_(stream), emulated_(device.vendor == "host"), threads_(GpuLimitThreads(stream)) {
    const int64_t bytes = emulated_ ? kEmulatedBuffer : std::min(kLargestBuffer, device.free_bytes / 8);
    floats_ = bytes / static_cast<int64_t>(sizeof(float)) / kGpuTileFloats * kGpuTileFloats;
  }
  GpuLimits(const GpuLimits&) = delete;
  GpuLimits& operator=(const GpuLimits&) = delete;
  ~GpuLimits() {
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

  absl::StatusOr<MachineRates> Measure() {
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

// INTERNAL where a loop does not give the right numbers, or twice the multiply-adds do not take about twice as long
// (not asked of the host executor). Errors of the device.
absl::StatusOr<std::shared_ptr<GpuLimits>> MakeGpuLimits(const gpu::DeviceInfo& device, const gpu::Stream& stream) {
  auto limits = std::make_shared<GpuLimits>(device, stream);
  GDN_RETURN_IF_ERROR(limits->Prepare());
  return limits;
}

// Log lengths come round after L runs; by then the backend has sent every index array of the case, and after another L
// also those that it gave up on the way. So nothing is copied while a graph is recorded.
constexpr int kWarmUpRuns = 2 * kLogCapacity;
// Memory clocks of idle cards are low (350 MHz on an MI50), and take their time to rise.
constexpr double kFirstWarmUpSeconds = 0.5;
// A graph lasts this long, or so many runs, at the most: the gap between two replays is then small against it.
constexpr double kGraphSeconds = 1e-3;
constexpr int64_t kMostGraphRuns = 64;
constexpr int64_t kLeastRotation = int64_t{256} << 20;

class TimedGraph final : public TimedCase {
 public:
  TimedGraph(const gpu::Stream& stream, EventPair& events, const PreparedCase& prepared)
      : stream_(stream), events_(events), prepared_(prepared) {}
  ~TimedGraph() override {
    static_cast<void>(gpu::SynchronizeStream(stream_));  // Time() has reported a failure
    if (graph_ != nullptr) gpu::DestroyGraph(graph_);
  }

  // Seconds, of the device and of launching.
  absl::StatusOr<double> Run(int64_t runs) {
    const double start = NowSeconds();
    for (int64_t i = 0; i < runs; ++i) GDN_RETURN_IF_ERROR(prepared_.run());
    GDN_RETURN_IF_ERROR(gpu::SynchronizeStream(stream_));
    return NowSeconds() - start;
  }

  // Leaves the case to be launched directly where the runtime cannot record.
  absl::Status Record(int64_t runs) {
    const absl::Status begun = gpu::BeginCapture(stream_);
    if (absl::IsUnimplemented(begun)) return absl::OkStatus();
    GDN_RETURN_IF_ERROR(begun);
    absl::Status recorded;
    for (int64_t i = 0; i < runs && recorded.ok(); ++i) recorded = prepared_.run();
    absl::StatusOr<gpu::Graph> graph = gpu::EndCapture(stream_);  // always, or the stream would stay in recording
    GDN_RETURN_IF_ERROR(recorded);
    GDN_RETURN_IF_ERROR(graph.status());
    graph_ = *graph;
    runs_per_repetition_ = runs;
    GDN_RETURN_IF_ERROR(gpu::LaunchGraph(graph_, stream_));  // the first launch also moves the graph to the device
    return gpu::SynchronizeStream(stream_);
  }

  TimingMethod method() const override { return graph_ != nullptr ? TimingMethod::kGraph : TimingMethod::kLaunches; }
  int64_t steps_per_repetition() const override { return runs_per_repetition_ * prepared_.steps; }

  absl::StatusOr<double> Time(int64_t repetitions) override {
    GDN_RETURN_IF_ERROR(events_.Begin());
    for (int64_t i = 0; i < repetitions; ++i) {
      GDN_RETURN_IF_ERROR(graph_ != nullptr ? gpu::LaunchGraph(graph_, stream_) : prepared_.run());
    }
    return events_.EndSeconds();
  }
  absl::StatusOr<double> TimeLaunches(int64_t repetitions) override { return Run(repetitions * runs_per_repetition_); }

 private:
  const gpu::Stream stream_;
  EventPair& events_;
  const PreparedCase& prepared_;
  gpu::Graph graph_ = nullptr;
  int64_t runs_per_repetition_ = 1;
};

struct GraphTimer {
  gpu::Stream stream;
  bool emulated = false;
  std::unique_ptr<EventPair> events;
  double warm_seconds = 0;

  absl::StatusOr<std::unique_ptr<TimedCase>> Load(const PreparedCase& prepared) {
    auto timed = std::make_unique<TimedGraph>(stream, *events, prepared);
    if (emulated) {
      GDN_RETURN_IF_ERROR(timed->Run(1).status());
      return timed;
    }
    constexpr int kHalf = kWarmUpRuns / 2;
    GDN_RETURN_IF_ERROR(timed->Run(kHalf).status());
    GDN_ASSIGN_OR_RETURN(double seconds, timed->Run(kHalf));
    const double run_seconds = std::max(seconds / kHalf, 1e-9);
    for (; warm_seconds < kFirstWarmUpSeconds; warm_seconds += seconds) {
      GDN_ASSIGN_OR_RETURN(seconds, timed->Run(kWarmUpRuns));
    }
    if (prepared.every_run_differs) return timed;
    const auto wanted = static_cast<int64_t>(std::ceil(kGraphSeconds / run_seconds));
    GDN_RETURN_IF_ERROR(timed->Record(std::clamp<int64_t>(wanted, 1, kMostGraphRuns)));
    return timed;
  }
};

}  // namespace

absl::StatusOr<Machine> MakeGpuMachine(int device, const std::string& graphs, const std::string& matrix_units,
                                       ProductMath math) {
  const std::optional<GpuGraphs> choice = ParseGpuGraphs(graphs);
  if (!choice.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("--gpu-graphs is '", graphs, "', expected auto, on or off"));
  }
  if (matrix_units != "auto" && matrix_units != "off") {
    return absl::InvalidArgumentError(absl::StrCat("--matrix-units is '", matrix_units, "', expected auto or off"));
  }
  Machine machine;
  GDN_ASSIGN_OR_RETURN(
      machine.backend,
      MakeGpuBackend({.device = device, .graphs = *choice, .math = math, .matrix_units = matrix_units == "auto"}));
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(*machine.backend));
  GDN_ASSIGN_OR_RETURN(machine.device, gpu::DescribeDevice(device));
  const bool emulated = machine.device->vendor == "host";
  machine.measure_limits = [device = *machine.device, stream,
                            limits = std::shared_ptr<GpuLimits>()]() mutable -> absl::StatusOr<MachineRates> {
    if (limits == nullptr) {
      GDN_ASSIGN_OR_RETURN(limits, MakeGpuLimits(device, stream));
    }
    return limits->Measure();
  };
  GDN_ASSIGN_OR_RETURN(auto events, EventPair::Make(stream));
  auto timer = std::make_shared<GraphTimer>(GraphTimer{stream, emulated, std::move(events)});
  machine.load = [timer](const PreparedCase& prepared) { return timer->Load(prepared); };
  machine.last_level_cache_bytes = machine.device->l2_bytes;
  const int64_t cold = kColdFactor * machine.last_level_cache_bytes;
  machine.rotation_bytes = emulated ? cold : std::clamp(cold, kLeastRotation, kLargestRotation);
  return machine;
}

}  // namespace gdn::bench
