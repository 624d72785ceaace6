#include "tests/support/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace gdn {
namespace {

template <typename Actual, typename Expected>
double RelativeError(absl::Span<const Actual> actual, absl::Span<const Expected> expected) {
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

double RelativeNormError(absl::Span<const double> actual, absl::Span<const double> expected) {
  return RelativeError(actual, expected);
}

bool BitEqual(absl::Span<const float> a, absl::Span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

bool BitEqual(const SlotImage& a, const SlotImage& b) {
  return BitEqual(a.base, b.base) && BitEqual(a.log_k, b.log_k) && BitEqual(a.log_u, b.log_u) &&
         BitEqual(a.log_g, b.log_g) && BitEqual(a.conv, b.conv);
}

bool AllFinite(absl::Span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

}  // namespace gdn
