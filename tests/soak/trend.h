// The trend of a sampled figure over time: the slope of a least-squares line.
//
// Thread safety: a pure function.
//
//   const Trend trend = TrendOf(samples);
//   if (std::abs(trend.change_percent) >= 1) ...
#pragma once

#include <vector>

namespace gdn {

struct Sample {
  double seconds = 0;
  double value = 0;
};

struct Trend {
  double mean = 0;
  double change_percent = 0;  // change of the line from the first sample's time to the last's, in percent of the mean
};

// Computes the trend. The change is 0 unless there are at least two samples at different times.
Trend TrendOf(const std::vector<Sample>& samples);

}  // namespace gdn
