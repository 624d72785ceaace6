// Counts of measured values by size, for hot paths: relaxed atomics, no lock, no allocation. The type fixes the bucket
// bounds, so histograms that are added or compared have the same.
//
// Thread safety: safe from any thread. A copy taken while others observe has each value counted whole or not at all in
// its buckets, and count() is the buckets' sum. Ownership: plain values.
//
//   LatencyHistogram latency;
//   latency.Observe(end_ns - begin_ns);
//   const HistogramCounts counts = latency.counts();
//   counts.Quantile(0.99);
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace gdn {

// A copy of a histogram's counts at one moment.
struct HistogramCounts {
  std::span<const int64_t> bounds;  // ascending; static storage
  // [i]: number of values in (bounds[i - 1], bounds[i]]; the last: number above all bounds.
  std::vector<int64_t> buckets;
  int64_t sum = 0;  // sum of the values

  int64_t count() const { return std::accumulate(buckets.begin(), buckets.end(), int64_t{0}); }
  // Returns the values counted since the earlier copy `before`, which is of the same histogram or empty.
  HistogramCounts Since(const HistogramCounts& before) const {
    HistogramCounts since = *this;
    for (size_t i = 0; i < before.buckets.size(); ++i) since.buckets[i] -= before.buckets[i];
    since.sum -= before.sum;
    return since;
  }
  // Adds the counts of `other`, which has the same bounds and is not empty. This one may be empty.
  void Add(const HistogramCounts& other) {
    bounds = other.bounds;
    buckets.resize(other.buckets.size());
    for (size_t i = 0; i < buckets.size(); ++i) buckets[i] += other.buckets[i];
    sum += other.sum;
  }
  // Returns the value below which the share `part` (0 .. 1) of all counted values lies, interpolated linearly within
  // its bucket. If that is above all bounds, returns the last bound. 0 if nothing was counted.
  double Quantile(double part) const {
    const double wanted = part * static_cast<double>(count());
    double seen = 0;
    for (size_t i = 0; i < buckets.size(); ++i) {
      const auto here = static_cast<double>(buckets[i]);
      if (here == 0 || seen + here < wanted) {
        seen += here;
        continue;
      }
      if (i == bounds.size()) return static_cast<double>(bounds.back());
      const double low = i == 0 ? 0.0 : static_cast<double>(bounds[i - 1]);
      return low + (static_cast<double>(bounds[i]) - low) * std::max(0.0, wanted - seen) / here;
    }
    return 0;
  }
};

template <const auto& kBounds>
class Histogram {
 public:
  void Observe(int64_t value) {
    const auto bucket = static_cast<size_t>(std::lower_bound(kBounds.begin(), kBounds.end(), value) - kBounds.begin());
    buckets_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }
  HistogramCounts counts() const {
    HistogramCounts counts{.bounds = kBounds, .buckets = {}, .sum = sum_.load(std::memory_order_relaxed)};
    counts.buckets.reserve(buckets_.size());
    for (const auto& bucket : buckets_) counts.buckets.push_back(bucket.load(std::memory_order_relaxed));
    return counts;
  }

 private:
  std::array<std::atomic<int64_t>, kBounds.size() + 1> buckets_ = {};
  std::atomic<int64_t> sum_{0};
};

// Upper bounds of the buckets of a LatencyHistogram in nanoseconds: 10 us to 50 s.
inline constexpr std::array<int64_t, 21> kLatencyBoundsNs = {
    10'000,      20'000,        50'000,        100'000,       200'000,        500'000,        1'000'000,
    2'000'000,   5'000'000,     10'000'000,    20'000'000,    50'000'000,     100'000'000,    200'000'000,
    500'000'000, 1'000'000'000, 2'000'000'000, 5'000'000'000, 10'000'000'000, 20'000'000'000, 50'000'000'000};
using LatencyHistogram = Histogram<kLatencyBoundsNs>;  // of times in nanoseconds

// Upper bounds of the buckets of a RowHistogram: numbers of rows in a launch.
inline constexpr std::array<int64_t, 13> kRowBounds = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
using RowHistogram = Histogram<kRowBounds>;

}  // namespace gdn
