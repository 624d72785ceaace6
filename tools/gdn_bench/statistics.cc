#include "tools/gdn_bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace gdn::bench {
namespace {

double PercentileOfSorted(const std::vector<double>& sorted, double fraction) {
  if (sorted.empty()) return 0;
  const double rank = std::clamp(fraction, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(std::floor(rank));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = rank - static_cast<double>(below);
  return sorted[below] + weight * (sorted[above] - sorted[below]);
}

}  // namespace

double Percentile(std::vector<double> values, double fraction) {
  std::sort(values.begin(), values.end());
  return PercentileOfSorted(values, fraction);
}

Summary Summarize(const std::vector<double>& values) {
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  return {.median = PercentileOfSorted(sorted, 0.5),
          .min = PercentileOfSorted(sorted, 0.0),
          .p10 = PercentileOfSorted(sorted, 0.1),
          .p90 = PercentileOfSorted(sorted, 0.9),
          .count = static_cast<int64_t>(sorted.size())};
}

Latencies SummarizeLatencies(const std::vector<double>& seconds) {
  return {.calls = static_cast<int64_t>(seconds.size()),
          .p50_s = Percentile(seconds, 0.5),
          .p99_s = Percentile(seconds, 0.99)};
}

Summary SummarizeRatios(const std::vector<double>& above, const std::vector<double>& below) {
  std::vector<double> ratios;
  for (size_t i = 0; i < above.size(); ++i) ratios.push_back(above[i] / below[i]);
  return Summarize(ratios);
}

}  // namespace gdn::bench
