#include "server/trace/call_trace.h"

#include <algorithm>
#include <chrono>

#include "base/threads/this_thread.h"

namespace gdn {

int64_t TraceNow() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::max<int64_t>(1, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

void LaunchStamps::Issued() {
  issued = TraceNow();
  issuer = ThisThreadLabel();
}

void CallTrace::AddLaunch(const LaunchStamps& stamps) {
  if (last_issued == stamps.issued) return;
  last_issued = stamps.issued;
  ++launch_count;
  if (launches.size() < kMostLaunches) {
    launches.push_back(stamps);
    return;
  }
  launches.back().computed = stamps.computed;
  launches.back().copied_out = stamps.copied_out;
}

std::vector<TracedStage> CallTrace::stages() const {
  std::vector<TracedStage> stages;
  const auto add = [&stages](TraceStage stage, int64_t begin, int64_t end, const std::string& thread) {
    if (begin != 0 && end != 0) stages.push_back({stage, begin, std::max(begin, end), thread});
  };
  add(TraceStage::kParse, parse, admit, starter);
  add(TraceStage::kAdmit, admit, admitted != 0 ? admitted : answered, starter);
  int64_t reached = admitted;  // the end of the stage before a wait
  const auto wait = [&](int64_t until) {
    if (reached != 0 && until > reached) add(TraceStage::kQueue, reached, until, "");
  };
  for (const LaunchStamps& launch : launches) {
    wait(launch.issued);
    add(TraceStage::kCopyIn, launch.issued, launch.copied_in, launch.issuer);
    if (launch.launched > launch.copied_in) {
      add(TraceStage::kLaunch, launch.copied_in, launch.launched, launch.issuer);
      reached = launch.launched;
      wait(launch.begun);
    }
    add(TraceStage::kCompute, launch.begun, launch.computed, "");
    add(TraceStage::kCopyOut, launch.computed, launch.copied_out, launch.ender);
    reached = std::max({reached, launch.issued, launch.computed, launch.copied_out});
  }
  if (launches.empty()) {
    wait(committed);  // a step without tokens
  } else if (committed != 0) {
    add(TraceStage::kCommit, reached, committed, launches.back().ender);
  }
  reached = std::max(reached, committed);
  if (waits_for_another) {
    wait(answered);
    reached = answered;
  }
  add(TraceStage::kReply, committed != 0 ? reached : answered, replied, answerer);
  std::ranges::stable_sort(stages, {}, &TracedStage::begin_ns);
  return stages;
}

}  // namespace gdn
