#include "tests/support/compare.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace gdn {
namespace {

template <typename T>
double RelativeError(absl::Span<const float> actual, absl::Span<const T> expected) {
  constexpr double kIncomparable = std::numeric_limits<double>::infinity();
  if (actual.size() != expected.size()) return kIncomparable;
  double error = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(actual[i])) return kIncomparable;
    const double difference = double{actual[i]} - double{expected[i]};
    error += difference * difference;
    norm += double{expected[i]} * double{expected[i]};
  }
  const double relative = norm > 0.0 ? std::sqrt(error / norm) : std::sqrt(error);
  return std::isnan(relative) ? kIncomparable : relative;
}

}  // namespace

double RelativeNormError(absl::Span<const float> actual, absl::Span<const float> expected) {
  return RelativeError(actual, expected);
}

double RelativeNormError(absl::Span<const float> actual, absl::Span<const double> expected) {
  return RelativeError(actual, expected);
}

bool BitEqual(absl::Span<const float> a, absl::Span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

bool AllFinite(absl::Span<const float> values) {
  for (float value : values) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

}  // namespace gdn
