#include "base/string_cat.h"

#include "gtest/gtest.h"

namespace gdn::string_cat_test {
namespace {

TEST(StringCat, TakesEveryKindOfPiece) {
  const std::string_view view = "view";
  const absl::string_view absl_view = "absl";
  const std::string text = "text";
  EXPECT_EQ(StrCat(view, " ", absl_view, " ", text, " ", 7, " ", -1.5), "view absl text 7 -1.5");
  EXPECT_EQ(StrCat(), "");
  std::string out = "a";
  StrAppend(&out, view, std::string_view(), 3);
  EXPECT_EQ(out, "aview3");
}

}  // namespace
}  // namespace gdn::string_cat_test
