// MaterializeState: logs folded from slot to slot, by the CPU against the reference.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/decode_session.h"
#include "tests/support/compare.h"

namespace gdn {
namespace {

using ::testing::HasSubstr;

constexpr double kReferenceTolerance = 5e-7;  // the reference rounds u and each folded base to float32

// A pool whose slots 0 and 1 hold random states and logs of 3 and 16 entries, with convolution columns.
class MaterializeState : public ::testing::Test {
 protected:
  MaterializeState() : pool_(Dims(), 5), expected_(Dims(), 5) {
    Random random(9);
    for (int32_t s = 0; s < 5; ++s) {
      const std::vector<float> noise = random.Normal(pool_.view().layout.slot_floats(), 0.5f);
      std::copy(noise.begin(), noise.end(), pool_.slot(s).begin());
      const StateLayout& layout = pool_.view().layout;
      const absl::Span<float> g = pool_.slot(s).subspan(layout.log_g_offset(), layout.log_rows() * Dims().value_heads);
      for (float& value : g) value = -std::abs(value);
      std::copy(pool_.slot(s).begin(), pool_.slot(s).end(), expected_.slot(s).begin());
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
    const int32_t count = static_cast<int32_t>(src.size());
    const auto params = [&](const HostStatePool& pool) {
      return MaterializeStateParams{.pool = pool.view(),
                                    .count = count,
                                    .src = src.data(),
                                    .dst = dst.data(),
                                    .log_lengths = log_lengths.data(),
                                    .src_bases = src_bases.empty() ? nullptr : src_bases.data()};
    };
    MaterializeStateReference(params(expected_));
    const absl::Status status = MaterializeStateCpu(params(pool_), threads_);
    ASSERT_TRUE(status.ok()) << status;
    for (int32_t s = 0; s < 5; ++s) {
      EXPECT_LE(RelativeNormError(pool_.slot(s), expected_.slot(s)), kReferenceTolerance) << "slot " << s;
    }
  }

  absl::Span<float> Conv(int32_t slot) {
    const StateLayout& layout = pool_.view().layout;
    return pool_.slot(slot).subspan(layout.conv_offset(), layout.conv_columns() * Dims().conv_channels());
  }

  ThreadPool threads_{2};
  HostStatePool pool_;
  HostStatePool expected_;
};

TEST_F(MaterializeState, FoldsTheLogIntoAnotherSlotAndCopiesTheConvolutionColumns) {
  const std::vector<float> source(pool_.slot(0).begin(), pool_.slot(0).end());
  Run({0, 1}, {3, 4}, {3, kLogCapacity});
  EXPECT_TRUE(BitEqual(pool_.slot(0), source)) << "the source has changed";
  EXPECT_TRUE(BitEqual(Conv(3), Conv(0)));
  EXPECT_TRUE(BitEqual(Conv(4), Conv(1)));
  EXPECT_FALSE(BitEqual(pool_.base(3), pool_.base(0)));
}

TEST_F(MaterializeState, FoldsInPlaceToTheBitsOfAFoldElsewhere) {
  Run({0}, {2}, {5});
  Run({0}, {0}, {5});
  EXPECT_TRUE(BitEqual(pool_.base(0), pool_.base(2)));
  EXPECT_TRUE(BitEqual(Conv(0), Conv(2)));
}

TEST_F(MaterializeState, CopiesABaseWithoutALogToTheBit) {
  Run({1}, {2}, {0});
  EXPECT_TRUE(BitEqual(pool_.base(2), pool_.base(1)));
  EXPECT_TRUE(BitEqual(Conv(2), Conv(1)));
}

TEST_F(MaterializeState, MakesFreshStatesFromNegativeSources) {
  Run({-1, 0}, {2, 3}, {77, 4});
  EXPECT_TRUE(BitEqual(pool_.base(2), std::vector<float>(pool_.base(2).size(), 0.0f)));
  EXPECT_TRUE(BitEqual(Conv(2), std::vector<float>(Conv(2).size(), 0.0f)));
}

TEST_F(MaterializeState, ForksOneSourceToManySlots) {
  Run({1, 1, 1}, {2, 3, 4}, {7, 7, 7});
  EXPECT_TRUE(BitEqual(pool_.base(2), pool_.base(3)));
  EXPECT_TRUE(BitEqual(pool_.base(2), pool_.base(4)));
}

TEST_F(MaterializeState, FoldsOntoABaseOfAnotherSlotToTheBitsOfOnesOwn) {
  Run({0}, {2}, {5});
  const std::vector<float> expected(pool_.base(2).begin(), pool_.base(2).end());
  const std::vector<float> shared(pool_.slot(0).begin(), pool_.slot(0).end());
  // Slot 3 has slot 0's log and columns, and a base that nobody may read.
  for (HostStatePool* pool : {&pool_, &expected_}) {
    std::copy(shared.begin(), shared.end(), pool->slot(3).begin());
    std::fill(pool->base(3).begin(), pool->base(3).end(), 7.0f);
  }
  Run({3}, {4}, {5}, {0});
  Run({3}, {3}, {5}, {0});
  EXPECT_TRUE(BitEqual(pool_.base(3), expected));
  EXPECT_TRUE(BitEqual(pool_.base(4), expected));
  EXPECT_TRUE(BitEqual(pool_.slot(0), shared)) << "the shared base has changed";
}

TEST_F(MaterializeState, CopiesABaseOfAnotherSlotWhereTheLogIsEmpty) {
  Run({1, -1}, {1, 2}, {0, 0}, {0, 77});
  EXPECT_TRUE(BitEqual(pool_.base(1), pool_.base(0)));
  EXPECT_TRUE(BitEqual(pool_.base(2), std::vector<float>(pool_.base(2).size(), 0.0f)));
}

TEST_F(MaterializeState, GivesTheBitsOfADecodeFold) {
  Random random(10);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(Dims(), kLogCapacity, random);
  Session session(pool_, 0);
  session.Decode(Slice(inputs, 0, 8), threads_);
  session.Decode(Slice(inputs, 8, 15), threads_);
  // The same sixteenth token, once folded by decode and once by hand after it has been put in the log.
  std::copy(pool_.slot(0).begin(), pool_.slot(0).end(), pool_.slot(2).begin());
  session.Decode(Slice(inputs, 15, 16), threads_);
  ASSERT_EQ(session.log_length(), 0);
  const StateLayout& layout = pool_.view().layout;
  const auto copy_entry = [&](int64_t offset, int64_t row) {
    const auto from = pool_.slot(0).subspan(offset + 15 * row, row);
    std::copy(from.begin(), from.end(), pool_.slot(2).begin() + offset + 15 * row);
  };
  copy_entry(layout.log_u_offset(), Dims().value_features());
  copy_entry(layout.log_g_offset(), Dims().value_heads);
  std::copy_n(inputs.k.begin() + 15 * Dims().key_features(), Dims().key_features(),
              pool_.slot(2).begin() + layout.log_k_offset() + 15 * Dims().key_features());
  const int32_t slot = 2;
  const int32_t log_length = kLogCapacity;
  ASSERT_TRUE(MaterializeStateCpu(
                  {.pool = pool_.view(), .count = 1, .src = &slot, .dst = &slot, .log_lengths = &log_length}, threads_)
                  .ok());
  EXPECT_TRUE(BitEqual(pool_.base(0), pool_.base(2)));
}

TEST_F(MaterializeState, RefusesSlotsThatDoNotFit) {
  const auto check = [&](std::vector<int32_t> src, std::vector<int32_t> dst, std::vector<int32_t> lengths,
                         const char* part, std::vector<int32_t> src_bases = {}) {
    const absl::Status status = MaterializeStateCpu({.pool = pool_.view(),
                                                     .count = static_cast<int32_t>(src.size()),
                                                     .src = src.data(),
                                                     .dst = dst.data(),
                                                     .log_lengths = lengths.data(),
                                                     .src_bases = src_bases.empty() ? nullptr : src_bases.data()},
                                                    threads_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  };
  check({0}, {5}, {0}, "dst[0]");
  check({0}, {-1}, {0}, "dst[0]");
  check({5}, {0}, {0}, "src[0]");
  check({0, 1}, {2, 2}, {0, 0}, "slot 2");
  check({0, 1}, {1, 2}, {0, 0}, "src[1]");
  check({0}, {1}, {-1}, "log_lengths[0]");
  check({0}, {1}, {pool_.view().layout.log_rows() + 1}, "log_lengths[0]");
  check({0}, {1}, {0}, "src_bases[0]", {5});
  check({0}, {1}, {0}, "src_bases[0]", {-1});
  check({0, 1}, {2, 3}, {0, 0}, "src_bases[1] = 2", {0, 2});
  for (int32_t s = 0; s < 5; ++s) EXPECT_TRUE(BitEqual(pool_.slot(s), expected_.slot(s)));
}

}  // namespace
}  // namespace gdn
