// Blocks of load on one server: a closed loop, where each client sends its next call when the last has been answered,
// or an open loop, where calls are sent when they are due, whatever became of those before.
//
// Thread safety: one thread; a block makes a thread for each caller and ends with them. Ownership: callers are the
// caller's.
//
//   GDN_ASSIGN_OR_RETURN(LoadBlock block, RunClosedBlock(callers, /*seconds=*/0.05));
//   GDN_ASSIGN_OR_RETURN(LoadBlock block, RunOpenBlock(callers, ArrivalTimes(Arrivals::kPoisson, 500, 100, seed)));
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/gdn_bench/serve_calls.h"

namespace gdn::bench {

using Callers = std::vector<std::unique_ptr<Caller>>;

struct LoadBlock {
  std::vector<double> latencies_s;  // of every call; of an open loop from when it was due
  double calls_per_s = 0;
  int64_t late = 0;  // of an open loop: calls that were due while every caller was waiting for a reply
};

// Every caller calls at least once, and begins no call after `seconds`. Its rate is counted over its own time, and
// calls_per_s is their sum: no caller is idle before the last one has ended. The first error of any call.
absl::StatusOr<LoadBlock> RunClosedBlock(const Callers& callers, double seconds);

// Sends a call at each of the times, at most one a caller at once. The first error of any call; RESOURCE_EXHAUSTED
// where a call cannot be sent within `patience_s` of when it was due: leaving calls away would hide the slow ones.
absl::StatusOr<LoadBlock> RunOpenBlock(const Callers& callers, const std::vector<double>& arrival_times_s,
                                       double patience_s = 10);

}  // namespace gdn::bench
