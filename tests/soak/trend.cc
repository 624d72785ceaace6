#include "tests/soak/trend.h"

namespace gdn {

Trend TrendOf(const std::vector<Sample>& samples) {
  if (samples.empty()) return {};
  const auto count = static_cast<double>(samples.size());
  double time = 0;
  double value = 0;
  for (const Sample& sample : samples) {
    time += sample.seconds / count;
    value += sample.value / count;
  }
  double covariance = 0;
  double variance = 0;
  for (const Sample& sample : samples) {
    covariance += (sample.seconds - time) * (sample.value - value);
    variance += (sample.seconds - time) * (sample.seconds - time);
  }
  if (variance == 0 || value == 0) return {.mean = value};
  const double span = samples.back().seconds - samples.front().seconds;
  return {.mean = value, .change_percent = 100 * covariance / variance * span / value};
}

}  // namespace gdn
