#include "kernels/slot_codec.h"

#include <numeric>

#include "base/error.h"
#include "gtest/gtest.h"
#include "tests/state_store/test_image.h"
#include "tests/support/assert_ok.h"
#include "tests/support/compare.h"
#include "tests/support/refusal.h"

namespace gdn::slot_codec_test {
namespace {

StateLayout Layout(const LayerDims& dims, int32_t max_draft) { return StateLayout::Make(dims, max_draft).value(); }

// A head count, dimensions and widths that fit no block of a transpose.
constexpr LayerDims kOddDims{
    .key_heads = 3, .value_heads = 6, .key_dim = 33, .value_dim = 19, .conv_width = 3, .hidden_size = 8};
// A log decay for each key channel.
constexpr LayerDims kChannelDims{.key_heads = 2,
                                 .value_heads = 4,
                                 .key_dim = 6,
                                 .value_dim = 5,
                                 .conv_width = 4,
                                 .hidden_size = 16,
                                 .decay = DecayKind::kPerChannel};

TEST(SlotCodec, PartsAreASlotsSectionsInWireOrder) {
  Random random(3);
  for (const LayerDims& dims : {kModelDims, kOperatorDims, kOddDims, kChannelDims}) {
    for (const int64_t token_count : {0, 1, 2, 5, 11, 12, 1000}) {
      const StateLayout layout = Layout(dims, 8);
      const std::vector<float> slot = random.Normal(layout.slot_floats());
      const SlotExtent extent{.token_count = token_count, .log_length = token_count > 3 ? 3 : 0};
      std::vector<float> scratch;
      const SlotView view = ViewSlot(layout, /*transposed_base=*/false, slot.data(), extent, scratch);
      std::vector<float> expected(slot.size(), 0.0f);  // what the view does not say is zero in a slot filled from it
      const auto expect_section = [&](absl::Span<const float> part, int64_t offset, int64_t count) {
        EXPECT_EQ(part.data(), slot.data() + offset) << "wire order is not copied";
        EXPECT_EQ(part.size(), static_cast<size_t>(count));
        std::copy_n(slot.begin() + offset, count, expected.begin() + offset);
      };
      expect_section(view.base, layout.base_offset(), dims.state_elements());
      expect_section(view.log_k, layout.log_k_offset(), extent.log_length * dims.key_features());
      expect_section(view.log_u, layout.log_u_offset(), extent.log_length * dims.value_features());
      expect_section(view.log_g, layout.log_g_offset(), extent.log_length * dims.decay_features());
      const int64_t kept = dims.conv_width > 0 ? dims.conv_width - 1 : 0;
      const int64_t channels = dims.conv_channels();
      ASSERT_EQ(view.conv.size(), static_cast<size_t>(kept > 0 ? kept * channels : 0));
      for (int64_t j = 0; j < kept; ++j) {
        const int64_t periods = 1000 * layout.conv_columns();  // before the first token the ring goes on backwards
        const int64_t row = (token_count - kept + j + periods) % layout.conv_columns();
        for (int64_t c = 0; c < channels; ++c) {
          const int64_t at = layout.conv_offset() + row * channels + c;
          EXPECT_EQ(view.conv[static_cast<size_t>(c * kept + j)], slot[static_cast<size_t>(at)]) << token_count;
          expected[static_cast<size_t>(at)] = slot[static_cast<size_t>(at)];
        }
      }
      EXPECT_TRUE(view.draft_conv.empty());
      std::vector<float> filled(slot.size(), -1.0f);
      FillSlot(layout, false, extent, view, filled.data());
      EXPECT_TRUE(BitEqual(filled, expected));
    }
  }
}

TEST(SlotCodec, TurnsTransposedBasesToWireOrder) {
  for (const LayerDims& dims : {kModelDims, kOperatorDims, kOddDims, kChannelDims}) {
    const StateLayout layout = Layout(dims, 1);
    std::vector<float> slot(static_cast<size_t>(layout.slot_floats()));
    std::iota(slot.begin(), slot.end(), 1.0f);
    std::vector<float> scratch;
    const SlotView view = ViewSlot(layout, /*transposed_base=*/true, slot.data(), {}, scratch);
    for (int64_t hv = 0; hv < dims.value_heads; ++hv) {
      for (int64_t k = 0; k < dims.key_dim; ++k) {
        for (int64_t v = 0; v < dims.value_dim; ++v) {
          ASSERT_EQ(view.base[static_cast<size_t>((hv * dims.key_dim + k) * dims.value_dim + v)],
                    slot[static_cast<size_t>((hv * dims.value_dim + v) * dims.key_dim + k)]);
        }
      }
    }
    std::vector<float> again(slot.size());
    FillSlot(layout, true, {}, view, again.data());
    EXPECT_TRUE(BitEqual(absl::MakeSpan(again).subspan(0, dims.state_elements()),
                         absl::MakeSpan(slot).subspan(0, dims.state_elements())));
  }
}

TEST(SlotCodec, ConvColumnsOfADraftAreThoseFromTheTokenCountOn) {
  const StateLayout layout = Layout(kModelDims, 5);
  const int64_t columns = layout.conv_columns();
  const int64_t channels = kModelDims.conv_channels();
  for (const int64_t token_count : {7, 8, 9, 100}) {
    std::vector<float> slot(static_cast<size_t>(layout.slot_floats()));
    // The ring as if each token's inputs were its number and the channel.
    for (int64_t t = token_count - 3; t < token_count + 4; ++t) {
      for (int64_t c = 0; c < channels; ++c) {
        // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): the model has a convolution
        slot[static_cast<size_t>(layout.conv_offset() + t % columns * channels + c)] = static_cast<float>(1000 * t + c);
      }
    }
    std::vector<float> scratch;
    const SlotView view =
        ViewSlot(layout, false, slot.data(), {.token_count = token_count, .draft_length = 4}, scratch);
    ASSERT_EQ(view.conv.size(), static_cast<size_t>(3 * channels));
    ASSERT_EQ(view.draft_conv.size(), static_cast<size_t>(4 * channels));
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t j = 0; j < 3; ++j) {
        EXPECT_EQ(view.conv[static_cast<size_t>(c * 3 + j)], static_cast<float>(1000 * (token_count - 3 + j) + c));
      }
      for (int64_t j = 0; j < 4; ++j) {
        EXPECT_EQ(view.draft_conv[static_cast<size_t>(c * 4 + j)], static_cast<float>(1000 * (token_count + j) + c));
      }
    }
  }
}

TEST(SlotCodec, PartsSurviveASlotOfAnyLayout) {
  Random random(8);
  const SlotExtent extent{.token_count = 29, .log_length = 15, .draft_length = 4};
  for (const LayerDims& dims : {kModelDims, kOperatorDims, kOddDims, kChannelDims}) {
    const TestLayer layer = MakeLayer(dims, 0, extent, random);
    for (const int32_t max_draft : {4, 9, 64}) {
      for (const bool transposed : {false, true}) {
        const StateLayout layout = Layout(dims, max_draft);
        std::vector<float> slot(static_cast<size_t>(layout.slot_floats()), -1.0f);
        ASSERT_TRUE(CheckSlotView(layout, extent, layer.view()).ok());
        FillSlot(layout, transposed, extent, layer.view(), slot.data());
        std::vector<float> scratch;
        const SlotView view = ViewSlot(layout, transposed, slot.data(), extent, scratch);
        EXPECT_TRUE(BitEqual(view.base, layer.base));
        EXPECT_TRUE(BitEqual(view.log_k, layer.log_k));
        EXPECT_TRUE(BitEqual(view.log_u, layer.log_u));
        EXPECT_TRUE(BitEqual(view.log_g, layer.log_g));
        EXPECT_TRUE(BitEqual(view.conv, layer.conv));
        EXPECT_TRUE(BitEqual(view.draft_conv, layer.draft_conv));
      }
    }
  }
}

TEST(SlotCodec, RefusesWhatDoesNotFit) {
  Random random(8);
  const StateLayout layout = Layout(kModelDims, 4);
  const TestLayer layer = MakeLayer(kModelDims, 0, {.token_count = 9, .log_length = 3, .draft_length = 5}, random);
  const absl::Status longer = CheckSlotView(layout, layer.extent, layer.view());
  ExpectError(longer, absl::StatusCode::kFailedPrecondition, reason::kStateMismatch);

  const SlotExtent extent{.token_count = 9, .log_length = 3, .draft_length = 1};
  const TestLayer good = MakeLayer(kModelDims, 0, extent, random);
  ASSERT_TRUE(CheckSlotView(layout, extent, good.view()).ok());
  for (absl::Span<const float> SlotView::*part : {&SlotView::base, &SlotView::log_k, &SlotView::log_u, &SlotView::log_g,
                                                  &SlotView::conv, &SlotView::draft_conv}) {
    SlotView view = good.view();
    (view.*part).remove_suffix(1);
    const absl::Status status = CheckSlotView(layout, extent, view);
    EXPECT_THAT(status, IsInvalid(""));
    EXPECT_EQ(ErrorReason(status), reason::kStateMismatch);
  }
  SlotView without = good.view();
  without.base = {};
  EXPECT_TRUE(CheckSlotView(layout, extent, without).ok());
  std::vector<float> slot(static_cast<size_t>(layout.slot_floats()), 1.0f);
  FillSlot(layout, false, extent, without, slot.data());
  EXPECT_TRUE(std::all_of(slot.begin(), slot.begin() + kModelDims.state_elements(), [](float x) { return x == 0.0f; }));
}

}  // namespace
}  // namespace gdn::slot_codec_test
