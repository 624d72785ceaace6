// Counts of latencies in log-linear buckets: percentiles of any number of calls in fixed memory.
//
// A bucket's width is at most 1/128 of its values, and its middle is reported, so a percentile is off by at most 0.4%.
// The smallest and the largest value are exact. The unit is 1 ns; values above 18 minutes count as 18 minutes.
// Thread safety: for one thread. Ownership: plain values.
//
//   LatencyHistogram latencies;
//   latencies.Record(0.001);
//   double p99_s = latencies.Percentile(0.99);
#pragma once

#include <cstdint>
#include <vector>

namespace gdn::bench {

class LatencyHistogram {
 public:
  LatencyHistogram();

  // Counts a value; a negative one counts as 0.
  void Record(double seconds);

  int64_t count() const { return count_; }
  // Returns the smallest recorded value, in seconds, that at least `fraction` (0 .. 1, clamped) of all values do not
  // exceed, within 0.4%; 0 if there are no values.
  double Percentile(double fraction) const;
  // Returns the largest recorded value, in seconds; 0 if there are no values.
  double MaxSeconds() const;

 private:
  std::vector<int64_t> buckets_;
  int64_t count_ = 0;
  int64_t min_ns_ = 0;  // min_ns_ and max_ns_ are valid if count_ > 0
  int64_t max_ns_ = 0;
};

}  // namespace gdn::bench
