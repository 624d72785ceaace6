// How far a backend's tensor is from its reference.
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

// All infinite where the sizes differ or the actual tensor holds a NaN or an infinity.
struct Difference {
  double max_abs = 0.0;        // max |d|
  double max_relative = 0.0;   // max |d| / max |expected|; max |d| where the reference is all zero
  double relative_norm = 0.0;  // ||d|| / ||expected||; ||d|| where the reference is all zero

  // The worse of both, measure by measure.
  void Merge(const Difference& other);
};

// The worst of the calls that make up a case; the first error, where one failed.
absl::StatusOr<Difference> Worst(const std::vector<absl::StatusOr<Difference>>& calls);

Difference Compare(absl::Span<const float> actual, absl::Span<const float> expected);
// The same of the elements that are not NaN in the reference. All infinite unless the tensors have their NaNs at the
// same places.
Difference CompareWithNaNs(absl::Span<const float> actual, absl::Span<const float> expected);

// What several calls of a case put out, end to end. One token's output can be close to zero by cancellation; measured
// against the whole run's norm its roundings weigh what they should.
struct OutputPair {
  std::vector<float> actual;
  std::vector<float> expected;

  void Append(const std::vector<float>& more_actual, const std::vector<float>& more_expected);
};

}  // namespace gdn::parity
