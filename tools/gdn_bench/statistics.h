// The clock of all measurements, and order statistics of repeated measurements.
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

// Returns seconds of the steady clock, since a moment that is fixed for the process.
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

// Percentiles of the latencies of single calls.
struct Latencies {
  int64_t calls = 0;
  double p50_s = 0;
  double p99_s = 0;
};

// Returns the value below which `fraction` (0 .. 1, clamped) of the values lie, interpolated linearly between the two
// nearest ranks: 0 gives the smallest value, 0.5 the median, 1 the largest. 0 if there are no values.
double Percentile(std::vector<double> values, double fraction);

// Returns median, minimum, percentiles and number of the values; zeros if there are none.
Summary Summarize(const std::vector<double>& values);
Latencies SummarizeLatencies(const std::vector<double>& seconds);
// Summarizes the ratios above[i] / below[i]. Both must have the same size.
Summary SummarizeRatios(const std::vector<double>& above, const std::vector<double>& below);

}  // namespace gdn::bench
