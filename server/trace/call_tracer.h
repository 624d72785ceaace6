// The last calls that ended, each with where its time went.
//
// While it is off a call costs it one load of an atomic.
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

// A call takes about 1 KiB, a prefill of many launches up to 10.
inline constexpr int32_t kMostTracedCalls = 10'000;

class CallTracer {
 public:
  // 0: it is off.
  explicit CallTracer(int32_t keep) : kept_(keep) {}

  bool on() const { return kept_.load(std::memory_order_relaxed) > 0; }
  int32_t kept() const { return kept_.load(std::memory_order_relaxed); }
  // From now on; older calls than the last so many are forgotten at once. 0 .. kMostTracedCalls.
  void Keep(int32_t calls);

  // A call whose request is to be read now; null while it is off.
  std::unique_ptr<CallTrace> Begin(std::string_view method) const;
  // The call has been replied to. Does nothing with a null one.
  void End(std::unique_ptr<CallTrace> trace);

  // The principal's last calls, at most so many (0: all that are there), in the order in which they ended.
  std::vector<std::shared_ptr<const CallTrace>> Calls(const std::string& principal, int32_t most) const;
  // Of all principals' calls that are kept: those that took longest, at most so many, the longest first.
  std::vector<std::shared_ptr<const CallTrace>> Slowest(size_t most) const;
  // How long this stage took in the calls that have ended while it was on.
  HistogramCounts stage_times(TraceStage stage) const { return stages_[static_cast<size_t>(stage)].counts(); }

 private:
  std::atomic<int32_t> kept_;
  std::array<LatencyHistogram, kTraceStageNames.size()> stages_;
  mutable absl::Mutex mu_;
  std::deque<std::shared_ptr<const CallTrace>> ended_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
