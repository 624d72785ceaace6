#include "tools/gdn_bench/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

namespace gdn::bench {
namespace {

constexpr int kSubBucketBits = 7;
constexpr int64_t kSubBuckets = int64_t{1} << kSubBucketBits;  // in each power of two
constexpr int64_t kMostNs = (int64_t{1} << 40) - 1;

// Below 2 kSubBuckets a bucket is one nanosecond; above, 2^shift of them, where shift brings the value to
// kSubBuckets .. 2 kSubBuckets - 1.
int ShiftOf(int64_t ns) {
  return std::max(0, static_cast<int>(std::bit_width(static_cast<uint64_t>(ns))) - 1 - kSubBucketBits);
}

size_t BucketOf(int64_t ns) {
  const int shift = ShiftOf(ns);
  return static_cast<size_t>(shift * kSubBuckets + (ns >> shift));
}

// The middle of a bucket.
int64_t ValueOf(size_t bucket) {
  const auto index = static_cast<int64_t>(bucket);
  const int64_t shift = std::max<int64_t>(0, index / kSubBuckets - 1);
  const int64_t low = (index - shift * kSubBuckets) << shift;
  return low + ((int64_t{1} << shift) - 1) / 2;
}

}  // namespace

LatencyHistogram::LatencyHistogram() : buckets_(BucketOf(kMostNs) + 1) {}

void LatencyHistogram::Record(double seconds) {
  const auto ns = static_cast<int64_t>(std::clamp(std::round(seconds * 1e9), 0.0, static_cast<double>(kMostNs)));
  ++buckets_[BucketOf(ns)];
  min_ns_ = count_ == 0 ? ns : std::min(min_ns_, ns);
  max_ns_ = count_ == 0 ? ns : std::max(max_ns_, ns);
  ++count_;
}

double LatencyHistogram::Percentile(double fraction) const {
  if (count_ == 0) return 0;
  const auto wanted = static_cast<int64_t>(std::ceil(std::clamp(fraction, 0.0, 1.0) * static_cast<double>(count_)));
  const int64_t rank = std::clamp<int64_t>(wanted, 1, count_);
  if (rank == 1) return static_cast<double>(min_ns_) / 1e9;
  if (rank == count_) return MaxSeconds();
  int64_t seen = 0;
  size_t bucket = 0;
  while ((seen += buckets_[bucket]) < rank) ++bucket;
  return static_cast<double>(std::clamp(ValueOf(bucket), min_ns_, max_ns_)) / 1e9;
}

double LatencyHistogram::MaxSeconds() const { return static_cast<double>(max_ns_) / 1e9; }

}  // namespace gdn::bench
