// The clock that everything here is timed with, and order statistics of repeated measurements.
//
// Thread safety: free functions on the caller's values.
//
//   const double start = NowSeconds();
//   Summary s = Summarize(seconds);  // s.median, s.p10, s.p90, s.count
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace gdn::bench {

inline double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Summary {
  double median = 0;
  double min = 0;
  double p10 = 0;
  double p90 = 0;
  int64_t count = 0;
};

// Of single calls.
struct Latencies {
  int64_t calls = 0;
  double p50_s = 0;
  double p99_s = 0;
};

// The value below which `fraction` (0 .. 1, clamped) of the values lie, interpolated linearly between the two nearest
// ranks, so that 0 is the smallest, 1 the largest and 0.5 the median. 0 for no values.
double Percentile(std::vector<double> values, double fraction);

Summary Summarize(const std::vector<double>& values);
Latencies SummarizeLatencies(const std::vector<double>& seconds);
// Of above[i] / below[i].
Summary SummarizeRatios(const std::vector<double>& above, const std::vector<double>& below);

}  // namespace gdn::bench
