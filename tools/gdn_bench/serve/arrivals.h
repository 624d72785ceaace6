// The send times of an open loop's calls, which do not depend on earlier replies.
//
// Latencies that are counted from these times have no coordinated omission: if the server stalls, every call that was
// due meanwhile counts as late, not only the one in progress.
// Thread safety: a pure function.
//
//   std::vector<double> due = ArrivalTimes(Arrivals::kPoisson, /*calls_per_s=*/500, /*count=*/100, /*seed=*/1);
#pragma once

#include <cstdint>
#include <vector>

namespace gdn::bench {

enum class Arrivals {
  kEven,     // equal distances of 1 / calls_per_s
  kPoisson,  // a Poisson process, as from many independent clients
};

// Returns `count` times in seconds after the start, ascending from 0. Equal arguments give equal times. `calls_per_s`
// must be above 0.
std::vector<double> ArrivalTimes(Arrivals arrivals, double calls_per_s, int64_t count, uint64_t seed);

}  // namespace gdn::bench
