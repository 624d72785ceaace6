// A GPU as a machine to measure on: runs are recorded as graphs and timed by events. Also the host executor, which
// records none.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "kernels/common/state_layout.h"
#include "kernels/gpu/runtime.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tools/gdn_bench/cache_size.h"
#include "tools/gdn_bench/clock.h"
#include "tools/gdn_bench/event_pair.h"
#include "tools/gdn_bench/gpu_limits.h"
#include "tools/gdn_bench/machine.h"

namespace gdn::bench {
namespace {

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

class GraphTimer final : public CaseTimer {
 public:
  GraphTimer(const gpu::Stream& stream, bool emulated, std::unique_ptr<EventPair> events)
      : stream_(stream), emulated_(emulated), events_(std::move(events)) {}

  absl::StatusOr<std::unique_ptr<TimedCase>> Load(const PreparedCase& prepared) override {
    auto timed = std::make_unique<TimedGraph>(stream_, *events_, prepared);
    if (emulated_) {
      GDN_RETURN_IF_ERROR(timed->Run(1).status());
      return timed;
    }
    constexpr int kHalf = kWarmUpRuns / 2;
    GDN_RETURN_IF_ERROR(timed->Run(kHalf).status());
    GDN_ASSIGN_OR_RETURN(double seconds, timed->Run(kHalf));
    const double run_seconds = std::max(seconds / kHalf, 1e-9);
    for (; warm_seconds_ < kFirstWarmUpSeconds; warm_seconds_ += seconds) {
      GDN_ASSIGN_OR_RETURN(seconds, timed->Run(kWarmUpRuns));
    }
    const auto wanted = static_cast<int64_t>(std::ceil(kGraphSeconds / run_seconds));
    GDN_RETURN_IF_ERROR(timed->Record(std::clamp<int64_t>(wanted, 1, kMostGraphRuns)));
    return timed;
  }

 private:
  const gpu::Stream stream_;
  const bool emulated_;
  const std::unique_ptr<EventPair> events_;
  double warm_seconds_ = 0;
};

}  // namespace

absl::StatusOr<Machine> MakeGpuMachine(int device) {
  Machine machine;
  GDN_ASSIGN_OR_RETURN(machine.backend, MakeGpuBackend({.device = device}));
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(*machine.backend));
  GDN_ASSIGN_OR_RETURN(machine.device, gpu::DescribeDevice(device));
  const bool emulated = machine.device->vendor == "host";
  GDN_ASSIGN_OR_RETURN(machine.limits, MakeGpuLimits(*machine.device, stream));
  GDN_ASSIGN_OR_RETURN(auto events, EventPair::Make(stream));
  machine.timer = std::make_unique<GraphTimer>(stream, emulated, std::move(events));
  machine.last_level_cache_bytes = machine.device->l2_bytes;
  const int64_t cold = kColdFactor * machine.last_level_cache_bytes;
  machine.rotation_bytes = emulated ? cold : std::clamp(cold, kLeastRotation, kLargestRotation);
  return machine;
}

}  // namespace gdn::bench
