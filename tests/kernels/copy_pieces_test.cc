// Many copies in one call, on every backend.
#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"
#include "tests/support/test_backend.h"

namespace gdn::copy_pieces_test {
namespace {

using CopyPieces = BackendTest;
GDN_ON_BACKENDS(CopyPieces, WithGpus({"cpu"}));

TEST_P(CopyPieces, PutsEveryPieceInItsPlaceAndNothingElsewhere) {
  Random random(3);
  constexpr int64_t kFloats = 60000;
  const std::vector<float> from = random.Normal(kFloats);
  std::vector<float> expected = random.Normal(kFloats);
  const DeviceBuffer source = *DeviceBuffer::Make(backend(), kFloats * sizeof(float));
  const DeviceBuffer target = *DeviceBuffer::Make(backend(), kFloats * sizeof(float));
  ASSERT_TRUE(backend().CopyIn(source.data(), from.data(), kFloats * sizeof(float)).ok());
  ASSERT_TRUE(backend().CopyIn(target.data(), expected.data(), kFloats * sizeof(float)).ok());
  std::vector<CopyPiece> pieces;
  int64_t at = 0;
  // The pieces have every alignment on both sides, and are shorter and longer than a worker's share.
  for (const int64_t floats : {1, 3, 4, 5, 16, 255, 1024, 0, 4095, 4096, 4097, 9001}) {
    for (int64_t shift = 0; shift < 2; ++shift) {
      at += 1 + random.NextInt(0, 3);
      const int64_t begin = random.NextInt(0, static_cast<int32_t>(kFloats - floats) - 1) / 4 * 4 + shift;
      pieces.push_back({target.floats() + at, source.floats() + begin, floats});
      std::copy_n(from.begin() + begin, floats, expected.begin() + at);
      at += floats;
    }
  }
  ASSERT_LT(at, kFloats);
  ASSERT_EQ(backend().CopyPieces(pieces), absl::OkStatus());
  std::vector<float> found(kFloats);
  ASSERT_TRUE(backend().CopyOut(found.data(), target.data(), kFloats * sizeof(float)).ok());
  ASSERT_TRUE(backend().Synchronize().ok());
  EXPECT_TRUE(BitEqual(found, expected));
}

TEST_P(CopyPieces, RefusesWhatIsNoPiece) {
  float x = 0;
  EXPECT_EQ(backend().CopyPieces({}), absl::OkStatus());
  EXPECT_EQ(backend().CopyPieces({CopyPiece{}}), absl::OkStatus());
  EXPECT_THAT(backend().CopyPieces({CopyPiece{nullptr, &x, 1}}), IsInvalid("to is null"));
  EXPECT_THAT(backend().CopyPieces({CopyPiece{&x, nullptr, 1}}), IsInvalid("from is null"));
  EXPECT_THAT(backend().CopyPieces({CopyPiece{&x, &x, -1}}), IsInvalid("floats[0] is -1"));
}

}  // namespace
}  // namespace gdn::copy_pieces_test
