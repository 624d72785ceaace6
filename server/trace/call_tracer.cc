#include "server/trace/call_tracer.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "base/threads/this_thread.h"

namespace gdn {

void CallTracer::Keep(int32_t calls) {
  absl::MutexLock lock(&mu_);
  kept_.store(calls, std::memory_order_relaxed);
  while (ended_.size() > static_cast<size_t>(calls)) ended_.pop_front();
}

std::unique_ptr<CallTrace> CallTracer::Begin(std::string_view method) const {
  if (!on()) return nullptr;
  auto trace = std::make_unique<CallTrace>();
  trace->method = method;
  trace->parse = TraceNow();
  trace->begin_time = absl::Now();
  trace->starter = ThisThreadLabel();
  return trace;
}

void CallTracer::End(std::unique_ptr<CallTrace> trace) {
  if (trace == nullptr) return;
  trace->replied = TraceNow();
  for (const TracedStage& stage : trace->stages()) {
    stages_[static_cast<size_t>(stage.stage)].Observe(stage.end_ns - stage.begin_ns);
  }
  absl::MutexLock lock(&mu_);
  const auto most = static_cast<size_t>(kept());
  if (most == 0) return;
  if (ended_.size() == most) ended_.pop_front();
  ended_.push_back(std::move(trace));
}

std::vector<std::shared_ptr<const CallTrace>> CallTracer::Calls(const std::string& principal, int32_t most) const {
  std::vector<std::shared_ptr<const CallTrace>> calls;
  absl::MutexLock lock(&mu_);
  for (auto it = ended_.rbegin(); it != ended_.rend(); ++it) {
    if ((*it)->principal != principal) continue;
    calls.push_back(*it);
    if (static_cast<int32_t>(calls.size()) == most) break;
  }
  std::ranges::reverse(calls);
  return calls;
}

std::vector<std::shared_ptr<const CallTrace>> CallTracer::Slowest(size_t most) const {
  std::vector<std::shared_ptr<const CallTrace>> calls;
  {
    absl::MutexLock lock(&mu_);
    calls.assign(ended_.begin(), ended_.end());
  }
  const auto longer = [](const auto& a, const auto& b) { return a->duration() > b->duration(); };
  most = std::min(most, calls.size());
  std::ranges::partial_sort(calls, calls.begin() + static_cast<std::ptrdiff_t>(most), longer);
  calls.resize(most);
  return calls;
}

}  // namespace gdn
