// Stores traces of the calls that ended last.
//
// While tracing is off, it costs a call one load of an atomic.
// Thread safety: safe from any thread. Ownership: owns the traces that have ended; must outlive the calls.
//
//   CallTracer tracer(/*keep=*/1000);
//   std::unique_ptr<CallTrace> trace = tracer.Begin("Decode");  // null while it is off
//   if (trace != nullptr) trace->principal = caller.principal;
//   ...
//   tracer.End(std::move(trace));
//   for (const auto& call : tracer.Calls(caller.principal, /*most=*/100)) Show(call->stages());
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/histogram.h"
#include "server/trace/call_trace.h"

namespace gdn {

// Most traces that Keep may be told to keep. A trace takes about 1 KiB, that of a prefill of many launches up to 10
// KiB.
inline constexpr int32_t kMostTracedCalls = 10'000;

class CallTracer {
 public:
  // `keep`: number of traces to keep, 0 .. kMostTracedCalls, of the calls that ended last. 0: tracing is off.
  explicit CallTracer(int32_t keep) : kept_(keep) {}

  bool on() const { return kept_.load(std::memory_order_relaxed) > 0; }
  int32_t kept() const { return kept_.load(std::memory_order_relaxed); }
  // Sets the number of traces to keep, 0 .. kMostTracedCalls. Older traces are dropped at once.
  void Keep(int32_t calls);

  // Begins the trace of a call. Call it before the request is read. Returns null while tracing is off.
  std::unique_ptr<CallTrace> Begin(std::string_view method) const;
  // Ends the trace of a call: stamps its end, counts its stages and stores it; if there are kept() already, the oldest
  // is dropped. Call it once the transport has the reply. Does nothing with a null trace.
  void End(std::unique_ptr<CallTrace> trace);

  // Returns the stored traces of the principal's last calls, at most `most` (0: all), in the order in which the calls
  // ended. The results stay valid when newer traces replace them.
  std::vector<std::shared_ptr<const CallTrace>> Calls(const std::string& principal, int32_t most) const;
  // Returns at most `most` of the stored traces, of all principals' calls: those of the slowest calls, the slowest
  // first.
  std::vector<std::shared_ptr<const CallTrace>> Slowest(size_t most) const;
  // Returns how long this stage took in all calls that were traced since the start, in nanoseconds.
  HistogramCounts stage_times(TraceStage stage) const { return stages_[static_cast<size_t>(stage)].counts(); }

 private:
  std::atomic<int32_t> kept_;
  std::array<LatencyHistogram, kTraceStageNames.size()> stages_;
  mutable absl::Mutex mu_;
  std::deque<std::shared_ptr<const CallTrace>> ended_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
