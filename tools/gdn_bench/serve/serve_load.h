// Runs blocks of load on one server. In a closed loop, each client sends its next call after the last reply. In an open
// loop, calls are sent when they are due, even if earlier ones have no reply yet.
//
// Thread safety: one thread; a block makes a thread for each Caller and joins all. Ownership: borrows the Callers.
//
//   GDN_ASSIGN_OR_RETURN(LoadBlock block, RunClosedBlock(callers, /*seconds=*/0.05));
//   GDN_ASSIGN_OR_RETURN(LoadBlock block, RunOpenBlock(callers, ArrivalTimes(Arrivals::kPoisson, 500, 100, seed)));
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/gdn_bench/serve/serve_calls.h"

namespace gdn::bench {

using Callers = std::vector<std::unique_ptr<Caller>>;

struct LoadBlock {
  std::vector<double> latencies_s;  // latency of every call; in an open loop counted from the time that it was due
  double calls_per_s = 0;
  int64_t late = 0;  // in an open loop: calls that were due while every Caller was waiting for a reply
};

// Runs a closed loop: every Caller calls at least once, and begins no call after `seconds`. calls_per_s is the sum of
// the Callers' rates. Each rate is over that Caller's own time, so waiting for the last Caller does not count. Returns
// the first error of any call.
absl::StatusOr<LoadBlock> RunClosedBlock(const Callers& callers, double seconds);

// Runs an open loop: sends a call at each of the times; each Caller has at most one in flight. Returns the first error
// of any call. RESOURCE_EXHAUSTED if a call cannot be sent within `patience_s` after it was due, because leaving calls
// out would hide slow ones.
absl::StatusOr<LoadBlock> RunOpenBlock(const Callers& callers, const std::vector<double>& arrival_times_s,
                                       double patience_s = 10);

}  // namespace gdn::bench
