#include "tools/gdn_parity/difference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gdn::parity {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

void Difference::Merge(const Difference& other) {
  max_abs = std::max(max_abs, other.max_abs);
  max_relative = std::max(max_relative, other.max_relative);
  relative_norm = std::max(relative_norm, other.relative_norm);
}

absl::StatusOr<Difference> Worst(const std::vector<absl::StatusOr<Difference>>& calls) {
  Difference worst;
  for (const absl::StatusOr<Difference>& call : calls) {
    if (!call.ok()) return call.status();
    worst.Merge(*call);
  }
  return worst;
}

Difference Compare(absl::Span<const float> actual, absl::Span<const float> expected) {
  const Difference incomparable{kInfinity, kInfinity, kInfinity};
  if (actual.size() != expected.size()) return incomparable;
  double max_abs = 0.0;
  double max_expected = 0.0;
  double squares = 0.0;
  double expected_squares = 0.0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(actual[i]) || !std::isfinite(expected[i])) return incomparable;
    const double difference = std::abs(double{actual[i]} - double{expected[i]});
    max_abs = std::max(max_abs, difference);
    max_expected = std::max(max_expected, std::abs(double{expected[i]}));
    squares += difference * difference;
    expected_squares += double{expected[i]} * double{expected[i]};
  }
  if (max_expected == 0.0) return {max_abs, max_abs, std::sqrt(squares)};
  return {max_abs, max_abs / max_expected, std::sqrt(squares / expected_squares)};
}

Difference CompareWithNaNs(absl::Span<const float> actual, absl::Span<const float> expected) {
  OutputPair numbers;
  for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
    if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
    numbers.Append({actual[i]}, {expected[i]});
  }
  if (actual.size() != expected.size()) numbers.actual.push_back(0.0f);
  return Compare(numbers.actual, numbers.expected);
}

void OutputPair::Append(const std::vector<float>& more_actual, const std::vector<float>& more_expected) {
  actual.insert(actual.end(), more_actual.begin(), more_actual.end());
  expected.insert(expected.end(), more_expected.begin(), more_expected.end());
}

}  // namespace gdn::parity
