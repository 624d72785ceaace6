// Where the time of one Prefill or Decode went: stamps that whoever has the call puts into its trace.
//
// A call without a trace has a null pointer in the place of one; no clock is read for it.
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

// In the order in which a call goes through them.
enum class TraceStage {
  kParse,    // the message, of a unary call
  kAdmit,    // checks, tensors out of shared memory, states brought to the device, admission
  kQueue,    // until a launch takes the step, and behind the launch before; or for another call's same step
  kCopyIn,   // slots made ready, inputs gathered and sent
  kLaunch,   // operators issued; not where issuing them computes them
  kCompute,  // on the device, its copies included
  kCopyOut,  // to the reply
  kCommit,   // of the leases, with the kept replies; of a step that did not fail
  kReply,    // until the transport has it
};

inline constexpr std::array kTraceStageNames = {"parse",   "admit",    "queue",  "copy_in", "launch",
                                                "compute", "copy_out", "commit", "reply"};

// Nanoseconds of a monotonic clock, never 0.
int64_t TraceNow();

// When a launch got where; 0: it did not, or none of its calls is traced.
struct LaunchStamps {
  int64_t issued = 0;
  int64_t copied_in = 0;  // where its rows are in several pools: those of the first
  int64_t launched = 0;
  int64_t begun = 0;  // on the device
  int64_t computed = 0;
  int64_t copied_out = 0;
  std::string issuer, ender;  // threads

  bool traced() const { return issued != 0; }
  void Issued();
};

struct TracedStage {
  TraceStage stage;
  int64_t begin_ns;
  int64_t end_ns;
  std::string thread;  // "" where it is nobody's
};

struct CallTrace {
  // Launches that are told one by one; later ones of a long prefill lengthen the last.
  static constexpr size_t kMostLaunches = 64;

  // What the call is.
  std::string method;
  std::string principal;
  std::string session;      // the first row's
  TraceContextPtr context;  // the client's trace
  int32_t layer = 0;
  int32_t rows = 0;
  int64_t tokens = 0;
  int64_t request_bytes = 0;
  int64_t response_bytes = 0;
  int32_t launch_count = 0;
  absl::Status status;
  absl::Time begin_time;  // on the wall's clock

  // When it got where; 0: it did not.
  int64_t parse = 0;
  int64_t admit = 0;
  int64_t admitted = 0;  // every row has its lease, its stored reply, another call to wait for, or its error
  bool waits_for_another = false;
  std::vector<LaunchStamps> launches;
  int64_t last_issued = 0;
  int64_t committed = 0;
  int64_t answered = 0;  // the reply is whole
  int64_t replied = 0;
  std::string starter, answerer;  // threads

  int64_t begin() const { return parse; }
  int64_t duration() const { return replied - parse; }
  // Counts a launch once, however many of its rows are the call's.
  void AddLaunch(const LaunchStamps& stamps);
  // Those that it went through, by their begin; the launches of a prefill may overlap.
  std::vector<TracedStage> stages() const;
};

}  // namespace gdn
