// Comparisons of tensors in tests: by relative norm error against a reference, or bit by bit.
//
// Thread safety: free functions on the caller's memory.
//
//   EXPECT_LE(RelativeNormError(output, reference), kTolerance);
//   EXPECT_TRUE(BitEqual(alone, in_batch));
#pragma once

#include "absl/types/span.h"
#include "kernels/slot_access.h"

namespace gdn {

// Returns |actual - expected| / |expected| in the 2-norm, summed in double; |actual| if the reference is all zero.
// Infinity if the sizes differ or `actual` has a NaN or an infinity, so that EXPECT_LE fails.
double RelativeNormError(absl::Span<const float> actual, absl::Span<const float> expected);
double RelativeNormError(absl::Span<const float> actual, absl::Span<const double> expected);
double RelativeNormError(absl::Span<const double> actual, absl::Span<const double> expected);

// True if the bytes are equal: NaN equals a NaN with the same bits, and +0 differs from -0.
bool BitEqual(absl::Span<const float> a, absl::Span<const float> b);
bool BitEqual(const SlotImage& a, const SlotImage& b);

bool AllFinite(absl::Span<const float> values);

}  // namespace gdn
