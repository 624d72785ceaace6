#include "kernels/gpu_backend/step_graphs.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "kernels/fill/fill.h"

namespace gdn::gpu {
namespace {

constexpr int kSightingsBefore = 2;  // run plainly
constexpr size_t kMostEntries = 512;

}  // namespace

StepGraphs::Entry& StepGraphs::Find(const std::string& key) {
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
    return entries_.front();
  }
  if (entries_.size() >= kMostEntries) {
    Entry& last = entries_.back();
    // The runtime keeps what is under way until it has run.
    if (last.graph != nullptr) DestroyGraph(last.graph);
    by_key_.erase(last.key);
    entries_.pop_back();
  }
  entries_.push_front({.key = key});
  by_key_.emplace(key, entries_.begin());
  return entries_.front();
}

absl::StatusOr<Graph> StepGraphs::Record(absl::FunctionRef<absl::Status()> issue) {
  GDN_RETURN_IF_ERROR(BeginCapture(stream_));
  recorder_.store(std::this_thread::get_id());
  absl::Status status = issue();
  recorder_.store(std::thread::id());
  absl::StatusOr<Graph> graph = EndCapture(stream_);  // always, or the stream would stay in recording
  if (!freed_while_recording_.empty()) {
    status.Update(absl::InternalError("memory was freed by what was recorded"));
    for (void* data : std::exchange(freed_while_recording_, {})) DeviceFree(data);
  }
  if (status.ok() || !graph.ok()) return status.ok() ? std::move(graph) : absl::StatusOr<Graph>(status);
  DestroyGraph(*graph);
  return status;
}

absl::Status StepGraphs::Run(const std::string& key, absl::FunctionRef<absl::Status()> issue) {
  {
    absl::MutexLock lock(&mu_);
    Entry& entry = Find(key);
    if (entry.graph == nullptr && !entry.refused && entry.seen >= kSightingsBefore) {
      absl::StatusOr<Graph> graph = Record(issue);
      if (graph.ok()) {
        entry.graph = *graph;
        ++counts_.recorded;
      } else {
        entry.refused = true;
        ++counts_.refused;
      }
    }
    if (entry.graph != nullptr) {
      const absl::Status launched = LaunchGraph(entry.graph, stream_);
      counts_.replayed += launched.ok() ? 1 : 0;
      if (!absl::IsResourceExhausted(launched)) return launched;
    }
    ++entry.seen;
    ++counts_.plain;
  }
  return issue();
}

void StepGraphs::DropAll() {
  absl::MutexLock lock(&mu_);
  static_cast<void>(SynchronizeStream(stream_));  // what has failed is told to who waits for the work
  for (const Entry& entry : entries_) {
    if (entry.graph != nullptr) DestroyGraph(entry.graph);
  }
  entries_.clear();
  by_key_.clear();
}

bool StepGraphs::FreesLater(void* data) {
  if (!recording()) return false;
  freed_while_recording_.push_back(data);
  return true;
}

absl::StatusOr<GraphGain> MeasureGraphGain(const Stream& stream) {
  constexpr int kLaunches = 6;  // about what a decode step has
  constexpr int kRounds = 32;
  constexpr size_t kBytes = 1024;
  GDN_ASSIGN_OR_RETURN(void* data, DeviceMalloc(kBytes));
  const absl::Cleanup free = [data] { DeviceFree(data); };
  const auto launch = [&]() -> absl::Status {
    for (int i = 0; i < kLaunches; ++i) GDN_RETURN_IF_ERROR(FillZeroGpu(data, kBytes, stream));
    return absl::OkStatus();
  };
  GDN_RETURN_IF_ERROR(launch());  // the first brings the code to the device
  GDN_RETURN_IF_ERROR(SynchronizeStream(stream));
  GDN_RETURN_IF_ERROR(BeginCapture(stream));
  const absl::Status recorded = launch();
  absl::StatusOr<Graph> graph = EndCapture(stream);
  GDN_RETURN_IF_ERROR(graph.status());
  const absl::Cleanup destroy = [&graph] { DestroyGraph(*graph); };
  GDN_RETURN_IF_ERROR(recorded);
  // A replay must do what was recorded: some runtimes' first graphs did not.
  std::array<char, kBytes> bytes;
  bytes.fill(1);
  GDN_RETURN_IF_ERROR(CopyToDevice(data, bytes.data(), kBytes, stream));
  GDN_RETURN_IF_ERROR(LaunchGraph(*graph, stream));
  GDN_RETURN_IF_ERROR(CopyToHost(bytes.data(), data, kBytes, stream));
  GDN_RETURN_IF_ERROR(SynchronizeStream(stream));
  if (std::ranges::any_of(bytes, [](char byte) { return byte != 0; })) {
    return absl::InternalError("a replay did not do what was recorded");
  }
  std::array<std::array<double, kRounds>, 2> times;
  for (int round = -2; round < kRounds; ++round) {  // two to warm up
    for (const int replayed : {0, 1}) {
      const absl::Time begin = absl::Now();
      GDN_RETURN_IF_ERROR(replayed != 0 ? LaunchGraph(*graph, stream) : launch());
      GDN_RETURN_IF_ERROR(SynchronizeStream(stream));
      if (round >= 0) times[replayed][round] = absl::ToDoubleMicroseconds(absl::Now() - begin);
    }
  }
  for (std::array<double, kRounds>& each : times) std::ranges::nth_element(each, each.begin() + kRounds / 2);
  return GraphGain{.plain_us = times[0][kRounds / 2], .replayed_us = times[1][kRounds / 2]};
}

}  // namespace gdn::gpu
