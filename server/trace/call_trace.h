// The trace of one Prefill or Decode: time stamps that show where its time went. Each part that handles the call adds
// its stamps.
//
// A call that is not traced has a null pointer instead of a trace, and no clock is read for it.
// Thread safety: for one thread at a time, as the call itself; stages() of a trace that nobody fills any more, from any
// thread. Ownership: a plain value. The call's reactor owns it; the call and its job point to it.
//
//   if (trace != nullptr) trace->submitted = TraceNow();
//   for (const TracedStage& stage : trace->stages()) Add(stage.stage, stage.end_ns - stage.begin_ns);
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/trace/trace_context.h"

namespace gdn {

// Stages in the order in which a call passes them.
enum class TraceStage {
  kParse,    // reads the message
  kAdmit,    // checks it, copies tensors out of shared memory, brings states to the device, admits the steps
  kQueue,    // waits for its launch, for the launch before it, or for another call that makes the same step
  kCopyIn,   // prepares slots, gathers and sends inputs
  kLaunch,   // issues operators; absent if issuing them computes them
  kCompute,  // computes on the device, its copies included
  kCopyOut,  // copies outputs to the reply
  kCommit,   // commits the leases and stores replies; absent if the step failed
  kReply,    // waits until the transport has the reply
};

inline constexpr std::array kTraceStageNames = {"parse",   "admit",    "queue",  "copy_in", "launch",
                                                "compute", "copy_out", "commit", "reply"};

// Returns nanoseconds of a monotonic clock, never 0.
int64_t TraceNow();

// Times (TraceNow) at which a launch reached each point. 0: it did not, or none of its calls is traced.
struct LaunchStamps {
  int64_t issued = 0;
  int64_t copied_in = 0;  // when its inputs were sent; if its rows are in several pools: those of the first pool
  int64_t launched = 0;
  int64_t begun = 0;  // when the device began, by the device time of the launch
  int64_t computed = 0;
  int64_t copied_out = 0;
  std::string issuer, ender;  // labels of the threads that issued and that ended the launch

  bool traced() const { return issued != 0; }
  // Stamps `issued` and `issuer` for the calling thread, which begins to issue the launch.
  void Issued();
};

struct TracedStage {
  TraceStage stage;
  int64_t begin_ns;
  int64_t end_ns;
  std::string thread;  // "" if no thread works on the stage
};

struct CallTrace {
  // Most launches that are stored one by one. Later launches of a long prefill extend the last one.
  static constexpr size_t kMostLaunches = 64;

  // Description of the call.
  std::string method;
  std::string principal;
  std::string session;      // name of the first row's session
  TraceContextPtr context;  // place in the client's trace; null: none
  int32_t layer = 0;
  int32_t rows = 0;
  int64_t tokens = 0;
  int64_t request_bytes = 0;
  int64_t response_bytes = 0;
  int32_t launch_count = 0;
  absl::Status status;
  absl::Time begin_time;  // when the call began, by the wall clock

  // Times (TraceNow) at which the call reached each point. 0: it did not.
  int64_t parse = 0;
  int64_t admit = 0;
  int64_t admitted = 0;  // every row has its lease, its stored reply, another call to wait for, or its error
  bool waits_for_another = false;
  std::vector<LaunchStamps> launches;
  int64_t last_issued = 0;
  int64_t committed = 0;
  int64_t answered = 0;  // the reply is complete
  int64_t replied = 0;
  std::string starter, answerer;  // labels of the threads that began the call and that completed its reply

  int64_t begin() const { return parse; }
  int64_t duration() const { return replied - parse; }
  // Adds a launch that has ended. May be called for each of the launch's rows that are the call's, one after another;
  // the launch is added once.
  void AddLaunch(const LaunchStamps& stamps);
  // Returns the stages that the call passed, ascending by their begin. A stage of launches occurs once for each. The
  // launches of a prefill may overlap.
  std::vector<TracedStage> stages() const;
};

}  // namespace gdn
