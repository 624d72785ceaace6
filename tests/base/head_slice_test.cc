#include "base/head_slice.h"

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"

namespace gdn::head_slice_test {
namespace {

using ::testing::HasSubstr;

constexpr LayerDims kDims{
    .key_heads = 4, .value_heads = 12, .key_dim = 8, .value_dim = 16, .conv_width = 4, .hidden_size = 32};

TEST(HeadSlice, IsReadAsItIsWritten) {
  for (const char* text : {"0-15/32", "16-31/32", "5-5/6", "0-1023/1024"}) {
    GDN_ASSERT_OK_AND_ASSIGN(const HeadSlice heads, ParseHeadSlice(text));
    EXPECT_EQ(HeadSliceToString(heads), heads.is_whole() ? "all" : text);
  }
  GDN_ASSERT_OK_AND_ASSIGN(const HeadSlice heads, ParseHeadSlice("3-8/12"));
  EXPECT_EQ(heads, (HeadSlice{.first = 3, .count = 6, .total = 12}));
  EXPECT_TRUE(HeadSlice{}.is_whole());
  EXPECT_EQ(HeadSliceToString({}), "all");
}

TEST(HeadSlice, WhatIsNoSliceIsRefused) {
  for (const char* text : {"", "0", "0-3", "3/4", "-3/4", "0-/4", "0-3/", "0-3/4/", "a-3/4", "00-3/4", " 0-3/4",
                           "0/3-4", "+0-3/4", "0-3/99999999999"}) {
    const absl::Status status = ParseHeadSlice(text).status();
    EXPECT_EQ(ErrorReason(status), reason::kInvalidSpec) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("FIRST-LAST/TOTAL")) << text;
  }
  for (const char* text : {"0-4/4", "3-2/4", "0-0/0", "0-15/2048"}) {
    EXPECT_THAT(std::string(ParseHeadSlice(text).status().message()), HasSubstr("not among the model's")) << text;
  }
}

TEST(HeadSlice, FitsAModelOfItsTotalInWholeGroups) {
  EXPECT_TRUE(CheckHeadSlice({}, kDims).ok());
  EXPECT_TRUE(CheckHeadSlice({.first = 3, .count = 6, .total = 12}, kDims).ok());
  EXPECT_TRUE(CheckHeadSlice({.first = 0, .count = 12, .total = 12}, kDims).ok());
  struct Case {
    HeadSlice heads;
    const char* message;
  };
  for (const Case& c : {Case{{.first = 0, .count = 6, .total = 16}, "the model has 12; expected FIRST-LAST/12"},
                        Case{{.first = 0, .count = 4, .total = 12}, "cut the 3 value heads that read key head 1"},
                        Case{{.first = 5, .count = 4, .total = 12}, "cut the 3 value heads that read key head 1"},
                        Case{{.first = 9, .count = 6, .total = 12}, "not among the model's"},
                        Case{{.first = -3, .count = 6, .total = 12}, "not among the model's"},
                        Case{{.first = 3, .count = 0, .total = 12}, "not among the model's"}}) {
    const absl::Status status = CheckHeadSlice(c.heads, kDims);
    EXPECT_EQ(ErrorReason(status), reason::kInvalidSpec);
    EXPECT_EQ(ErrorMetadata(status).at("field"), "heads");
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

TEST(HeadSlice, DimsOfASliceAndOfItsWhole) {
  const HeadSlice heads{.first = 3, .count = 6, .total = 12};
  const LayerDims own = SliceDims(kDims, heads);
  EXPECT_EQ(own.key_heads, 2);
  EXPECT_EQ(own.value_heads, 6);
  EXPECT_EQ(own.hidden_size, kDims.hidden_size);
  EXPECT_EQ(WholeDims(own, heads), kDims);
  EXPECT_EQ(SliceDims(kDims, {}), kDims);
  EXPECT_EQ(WholeDims(kDims, {}), kDims);
}

TEST(HeadSlice, EachSliceHasAFingerprintOfItsOwn) {
  const std::string model(32, 'a');
  EXPECT_EQ(SliceFingerprint(model, {}), model);
  EXPECT_EQ(SliceFingerprint(model, {.first = 0, .count = 4, .total = 4}), model);
  const std::string low = SliceFingerprint(model, {.first = 0, .count = 2, .total = 4});
  EXPECT_EQ(low.size(), 32u);
  EXPECT_NE(low, model);
  EXPECT_NE(low, SliceFingerprint(model, {.first = 2, .count = 2, .total = 4}));
  EXPECT_NE(low, SliceFingerprint(std::string(32, 'b'), {.first = 0, .count = 2, .total = 4}));
}

}  // namespace
}  // namespace gdn::head_slice_test
