// The difference between a backend's tensor and its reference.
//
// Thread safety: plain values.
//
//   Difference difference = Compare(actual, expected);
//   difference.Merge(Compare(other_actual, other_expected));
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gdn::parity {

// Measures of actual - expected. All are infinite if the sizes differ, or either tensor has a NaN or an infinity.
struct Difference {
  double max_abs = 0.0;        // max |actual - expected|
  double max_relative = 0.0;   // max_abs / max |expected|; max_abs if the reference is all zero
  double relative_norm = 0.0;  // ||actual - expected|| / ||expected||; ||actual|| if the reference is all zero

  // Sets each measure to the larger of both.
  void Merge(const Difference& other);
};

// Returns the worst difference of a case's calls, zero for no calls. Returns the first error if one failed.
absl::StatusOr<Difference> Worst(const std::vector<absl::StatusOr<Difference>>& calls);

Difference Compare(absl::Span<const float> actual, absl::Span<const float> expected);
// Compares only the elements that are not NaN in the reference. All infinite unless both tensors have NaNs at the same
// places.
Difference CompareWithNaNs(absl::Span<const float> actual, absl::Span<const float> expected);

// The outputs of several calls of a case, end to end, to be compared together. One token's output alone can be close to
// zero by cancellation, and its rounding errors would look too large.
struct OutputPair {
  std::vector<float> actual;
  std::vector<float> expected;

  void Append(const std::vector<float>& more_actual, const std::vector<float>& more_expected);
};

}  // namespace gdn::parity
