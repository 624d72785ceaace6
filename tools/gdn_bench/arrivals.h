// When the calls of an open loop are to be sent: by the clock, whatever became of the calls before.
//
// A latency counted from these times has no coordinated omission: a server that stalls makes every call that was due
// meanwhile late, and not only the one that it was busy with.
// Thread safety: a function of its arguments.
//
//   std::vector<double> due = ArrivalTimes(Arrivals::kPoisson, /*calls_per_s=*/500, /*count=*/100, /*seed=*/1);
#pragma once

#include <cstdint>
#include <vector>

namespace gdn::bench {

enum class Arrivals {
  kEven,     // 1 / rate apart
  kPoisson,  // as of many clients that do not know of each other
};

// Seconds after the beginning, in order; the first is 0. The same ones for the same arguments.
std::vector<double> ArrivalTimes(Arrivals arrivals, double calls_per_s, int64_t count, uint64_t seed);

}  // namespace gdn::bench
