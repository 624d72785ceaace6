// MaterializeState on every backend: logs folded from slot to slot, against the reference.
#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/kernels/decode_slots.h"
#include "tests/support/compare.h"
#include "tests/support/refusal.h"
#include "tests/support/test_backend.h"

namespace gdn::materialize_state_test {
namespace {

constexpr double kReferenceTolerance = 5e-7;  // the reference rounds u and each folded base to float32
constexpr int32_t kSlots = 5;
constexpr int32_t kMaxDraft = 16;

// Slots with random states, full logs with a draft behind them, and convolution columns.
class MaterializeState : public BackendTest {
 protected:
  MaterializeState() {
    Random random(9);
    const LayerDims dims = Dims();
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      const SlotImage image = RandomSlotImage(dims, kLogCapacity + kMaxDraft, random);
      slots_.Write(slot, image);
      expected_.Write(slot, image);
    }
  }

  static LayerDims Dims() {
    LayerDims dims = OperatorDims(2, 4, 13, 22);
    dims.conv_width = 4;
    dims.hidden_size = 32;
    return dims;
  }

  void Run(const std::vector<int32_t>& src, const std::vector<int32_t>& dst, const std::vector<int32_t>& log_lengths,
           const std::vector<int32_t>& src_bases = {}) {
    for (DecodeSlots* slots : {&slots_, &expected_}) {
      ASSERT_EQ(slots->Materialize(src, dst, log_lengths, src_bases), absl::OkStatus());
    }
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      SCOPED_TRACE("slot " + std::to_string(slot));
      const SlotImage actual = slots_.Read(slot, kLogCapacity), expected = expected_.Read(slot, kLogCapacity);
      EXPECT_LE(RelativeNormError(actual.base, expected.base), kReferenceTolerance);
      EXPECT_TRUE(BitEqual(actual.conv, expected.conv));
      if (std::count(dst.begin(), dst.end(), slot) > 0) continue;
      EXPECT_TRUE(BitEqual(actual.log_u, expected.log_u));
    }
  }

  std::vector<float> Base(int32_t slot) { return slots_.Base(slot); }
  std::vector<float> Conv(int32_t slot) { return slots_.Read(slot, 0).conv; }

  std::unique_ptr<Backend> reference_ = *MakeBackend("reference");
  DecodeSlots slots_{backend(), Dims(), kSlots, kMaxDraft};
  DecodeSlots expected_{*reference_, Dims(), kSlots, kMaxDraft};
};
GDN_ON_EVERY_BACKEND(MaterializeState);

TEST_P(MaterializeState, FoldsTheLogIntoAnotherSlotAndCopiesTheConvolutionColumns) {
  const std::vector<float> source = slots_.ReadAll(0);
  Run({0, 1, 0}, {3, 4, 2}, {3, kLogCapacity, kLogCapacity + kMaxDraft});
  EXPECT_TRUE(BitEqual(slots_.ReadAll(0), source)) << "the source has changed";
  EXPECT_TRUE(BitEqual(Conv(3), Conv(0)));
  EXPECT_TRUE(BitEqual(Conv(4), Conv(1)));
  EXPECT_FALSE(BitEqual(Base(3), Base(0)));
}

TEST_P(MaterializeState, FoldsInPlaceToTheBitsOfAFoldElsewhere) {
  Run({0}, {2}, {5});
  Run({0}, {0}, {5});
  EXPECT_TRUE(BitEqual(Base(0), Base(2)));
  EXPECT_TRUE(BitEqual(Conv(0), Conv(2)));
}

TEST_P(MaterializeState, CopiesABaseWithoutALogToTheBit) {
  Run({1}, {2}, {0});
  EXPECT_TRUE(BitEqual(Base(2), Base(1)));
  EXPECT_TRUE(BitEqual(Conv(2), Conv(1)));
}

TEST_P(MaterializeState, MakesFreshStatesFromNegativeSources) {
  Run({-1, 0}, {2, 3}, {77, 4});
  EXPECT_THAT(Base(2), testing::Each(0.0f));
  EXPECT_THAT(Conv(2), testing::Each(0.0f));
}

TEST_P(MaterializeState, ForksOneSourceToManySlots) {
  Run({1, 1, 1}, {2, 3, 4}, {7, 7, 7});
  EXPECT_TRUE(BitEqual(Base(2), Base(3)));
  EXPECT_TRUE(BitEqual(Base(2), Base(4)));
}

TEST_P(MaterializeState, FoldsOntoABaseOfAnotherSlotToTheBitsOfOnesOwn) {
  Run({0}, {2}, {5});
  const std::vector<float> expected = Base(2), shared = slots_.ReadAll(0);
  // Slot 3 has slot 0's log and columns, and a base that nobody may read.
  for (DecodeSlots* slots : {&slots_, &expected_}) {
    SlotImage image = slots->Read(0, kLogCapacity);
    std::fill(image.base.begin(), image.base.end(), 7.0f);
    slots->Write(3, image);
  }
  Run({3}, {4}, {5}, {0});
  Run({3}, {3}, {5}, {0});
  EXPECT_TRUE(BitEqual(Base(3), expected));
  EXPECT_TRUE(BitEqual(Base(4), expected));
  EXPECT_TRUE(BitEqual(slots_.ReadAll(0), shared)) << "the shared base has changed";
}

TEST_P(MaterializeState, CopiesABaseOfAnotherSlotWhereTheLogIsEmpty) {
  Run({1, -1}, {1, 2}, {0, 0}, {0, 77});
  EXPECT_TRUE(BitEqual(Base(1), Base(0)));
  EXPECT_THAT(Base(2), testing::Each(0.0f));
}

TEST_P(MaterializeState, RefusesSlotsThatDoNotFit) {
  std::vector<std::vector<float>> before;
  for (int32_t slot = 0; slot < kSlots; ++slot) before.push_back(slots_.ReadAll(slot));
  const auto check = [&](std::vector<int32_t> src, std::vector<int32_t> dst, std::vector<int32_t> lengths,
                         const char* part, std::vector<int32_t> src_bases = {}) {
    EXPECT_THAT(slots_.Materialize(src, dst, lengths, src_bases), IsInvalid(part));
  };
  check({0}, {5}, {0}, "dst[0]");
  check({0}, {-1}, {0}, "dst[0]");
  check({5}, {0}, {0}, "src[0]");
  check({0, 1}, {2, 2}, {0, 0}, "slot 2");
  check({0, 1}, {1, 2}, {0, 0}, "src[1]");
  check({0}, {1}, {-1}, "log_lengths[0]");
  check({0}, {1}, {kLogCapacity + kMaxDraft + 1}, "log_lengths[0]");
  check({0}, {1}, {0}, "src_bases[0]", {5});
  check({0}, {1}, {0}, "src_bases[0]", {-1});
  check({0, 1}, {2, 3}, {0, 0}, "src_bases[1] = 2", {0, 2});
  for (int32_t slot = 0; slot < kSlots; ++slot) EXPECT_TRUE(BitEqual(slots_.ReadAll(slot), before[slot]));
}

}  // namespace
}  // namespace gdn::materialize_state_test
