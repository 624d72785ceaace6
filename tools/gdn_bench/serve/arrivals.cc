#include "tools/gdn_bench/serve/arrivals.h"

#include <cmath>
#include <cstddef>
#include <random>

namespace gdn::bench {

std::vector<double> ArrivalTimes(Arrivals arrivals, double calls_per_s, int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> times(static_cast<size_t>(count));
  double now = 0;
  for (size_t i = 0; i < times.size(); ++i) {
    times[i] = arrivals == Arrivals::kEven ? static_cast<double>(i) / calls_per_s : now;
    const double uniform = static_cast<double>(random() >> 11) / static_cast<double>(uint64_t{1} << 53);  // [0, 1)
    now -= std::log1p(-uniform) / calls_per_s;
  }
  return times;
}

}  // namespace gdn::bench
