// How a figure that was sampled over time has changed: the slope of the straight line of least squares.
//
// Thread safety: a function of its arguments.
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
  double change_percent = 0;  // of the mean, from the first sample's time to the last's, along the line
};

// Of at least two samples at different times; else no change.
Trend TrendOf(const std::vector<Sample>& samples);

}  // namespace gdn
