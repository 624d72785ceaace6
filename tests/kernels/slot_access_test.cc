#include "kernels/slot_access.h"

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/compare.h"
#include "tests/support/delta_rule_problem.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"

namespace gdn::slot_access_test {
namespace {

constexpr LayerDims kDims{
    .key_heads = 2, .value_heads = 4, .key_dim = 5, .value_dim = 3, .conv_width = 4, .hidden_size = 8};

TEST(SlotAccess, ASlotReadsBackWhatWasWrittenAtAnyTokenCount) {
  const auto backend = *MakeCpuBackend({.threads = 1});
  HostStatePool pool(kDims, 3);
  Random random(1);
  for (int64_t token_count : {0, 1, 2, 3, 9, 10, 11, 12345}) {
    for (int32_t log_length : {0, 1, 15}) {
      const SlotImage image = RandomSlotImage(kDims, log_length, random);
      ASSERT_TRUE(WriteSlot(*backend, pool.view(), 1, token_count, image).ok());
      const auto read = ReadSlot(*backend, pool.view(), 1, log_length, token_count);
      ASSERT_TRUE(read.ok());
      EXPECT_TRUE(BitEqual(*read, image));
      EXPECT_THAT(pool.slot(0), testing::Each(0.0f));
      EXPECT_THAT(pool.slot(2), testing::Each(0.0f));
    }
  }
}

TEST(SlotAccess, ConvolutionColumnsAreNewestLast) {
  const auto backend = *MakeCpuBackend({.threads = 1});
  HostStatePool pool(kDims, 1, /*max_draft=*/2);  // P = 5
  const StateLayout& layout = pool.view().layout;
  const int64_t channels = kDims.conv_channels();
  for (int64_t column = 0; column < 5; ++column) {
    for (int64_t c = 0; c < channels; ++c) {
      pool.view().slot(0)[layout.conv_offset() + column * channels + c] = static_cast<float>(100 * column + c);
    }
  }
  // After 7 tokens the newest three are 4, 5 and 6: columns 4, 0 and 1.
  const SlotImage image = *ReadSlot(*backend, pool.view(), 0, 0, /*token_count=*/7);
  EXPECT_THAT(absl::MakeSpan(image.conv).subspan(2 * 3, 3), testing::ElementsAre(402, 2, 102));
  // After one token they are -2, -1 and 0: columns 3, 4 and 0.
  const SlotImage young = *ReadSlot(*backend, pool.view(), 0, 0, /*token_count=*/1);
  EXPECT_THAT(absl::MakeSpan(young.conv).subspan(0, 3), testing::ElementsAre(300, 400, 0));
}

TEST(SlotAccess, ZeroSlotMakesOneSlotFresh) {
  const auto backend = *MakeCpuBackend({.threads = 1});
  HostStatePool pool(kDims, 2);
  Random random(2);
  const SlotImage image = RandomSlotImage(kDims, 3, random);
  ASSERT_TRUE(WriteSlot(*backend, pool.view(), 0, 5, image).ok());
  ASSERT_TRUE(WriteSlot(*backend, pool.view(), 1, 5, image).ok());
  ASSERT_TRUE(backend->ZeroSlot(pool.view(), 0).ok());
  EXPECT_THAT(pool.slot(0), testing::Each(0.0f));
  EXPECT_EQ(ReadSlot(*backend, pool.view(), 1, 3, 5)->base, image.base);
}

TEST(SlotAccess, BadSlotAccessIsRefusedAndChangesNothing) {
  const auto backend = *MakeCpuBackend({.threads = 1});
  HostStatePool pool(kDims, 2);
  Random random(3);
  const SlotImage good = RandomSlotImage(kDims, 2, random);
  EXPECT_THAT(backend->ZeroSlot(pool.view(), 2), IsInvalid(""));
  EXPECT_THAT(backend->ZeroSlot(pool.view(), -1), IsInvalid(""));
  EXPECT_THAT(ReadSlot(*backend, pool.view(), 0, -1, 0).status(), IsInvalid(""));
  EXPECT_THAT(ReadSlot(*backend, pool.view(), 0, pool.view().layout.log_rows() + 1, 0).status(), IsInvalid(""));
  EXPECT_THAT(ReadSlot(*backend, pool.view(), 0, 0, -1).status(), IsInvalid(""));
  EXPECT_THAT(WriteSlot(*backend, pool.view(), 0, -1, good), IsInvalid(""));
  std::vector<float> SlotImage::*const parts[] = {&SlotImage::base, &SlotImage::log_k, &SlotImage::log_u,
                                                  &SlotImage::log_g, &SlotImage::conv};
  for (std::vector<float> SlotImage::*part : parts) {
    SlotImage bad = good;
    (bad.*part).pop_back();
    const absl::Status status = WriteSlot(*backend, pool.view(), 0, 0, bad);
    EXPECT_THAT(status, IsInvalid(""));
    EXPECT_EQ(ErrorReason(status), reason::kStateMismatch);
  }
  const SlotImage too_long = RandomSlotImage(kDims, pool.view().layout.log_rows() + 1, random);
  EXPECT_THAT(WriteSlot(*backend, pool.view(), 0, 0, too_long), IsInvalid(""));
  EXPECT_THAT(pool.slot(0), testing::Each(0.0f));
}

TEST(SlotAccess, ABareOperatorsSlotHasNoConvolution) {
  const auto backend = *MakeCpuBackend({.threads = 1});
  const LayerDims dims = OperatorDims(1, 2, 4, 4);
  HostStatePool pool(dims, 1);
  Random random(4);
  SlotImage image{.base = random.Normal(dims.state_elements()), .log_k = {}, .log_u = {}, .log_g = {}, .conv = {}};
  ASSERT_TRUE(WriteSlot(*backend, pool.view(), 0, 17, image).ok());
  const SlotImage read = *ReadSlot(*backend, pool.view(), 0, 0, 17);
  EXPECT_EQ(read.base, image.base);
  EXPECT_TRUE(read.conv.empty());
}

}  // namespace
}  // namespace gdn::slot_access_test
