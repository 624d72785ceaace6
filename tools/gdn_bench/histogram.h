// Counts of latencies in log-linear buckets: percentiles of any number of calls in fixed memory.
//
// A bucket is at most 1/128 of its values wide and is reported by its middle, so a percentile is off by at most 0.4%;
// the smallest and the largest value are exact. Nanoseconds up to 18 minutes; longer ones count as that.
// Thread safety: one thread; merge one histogram a thread. Ownership: plain values.
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

  void Record(double seconds);
  void Merge(const LatencyHistogram& other);

  int64_t count() const { return count_; }
  // The smallest recorded value that at least `fraction` (0 .. 1, clamped) of all values do not exceed, in seconds;
  // 0 where there is none.
  double Percentile(double fraction) const;
  double MaxSeconds() const;

 private:
  std::vector<int64_t> buckets_;
  int64_t count_ = 0;
  int64_t min_ns_ = 0;  // these two: where count_ > 0
  int64_t max_ns_ = 0;
};

}  // namespace gdn::bench
