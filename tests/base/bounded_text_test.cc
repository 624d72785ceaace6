#include "base/bounded_text.h"

#include <numeric>

#include "gtest/gtest.h"

namespace gdn::bounded_text_test {
namespace {

TEST(BoundedText, KeepsAShortTextAndTheEndsOfALongOne) {
  const std::string text = "0123456789012345678901234567890123456789012345678901234567890";
  EXPECT_EQ(BoundedText(text, text.size()), text);
  EXPECT_EQ(BoundedText(text, 48), "01234567890 [45 bytes] 67890");
  EXPECT_EQ(BoundedText("", 48), "");
}

TEST(BoundedText, CutsNoCharacter) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "\xe2\x82\xac";  // the euro sign
  for (size_t most = 48; most < text.size(); ++most) {
    const std::string bounded = BoundedText(text, most);
    EXPECT_LE(bounded.size(), most);
    const size_t begin = bounded.find(" ["), end = bounded.find("] ");
    EXPECT_EQ(begin % 3, 0u) << most;
    EXPECT_EQ((bounded.size() - end - 2) % 3, 0u) << most;
    EXPECT_EQ(bounded.substr(end + 2, 1), "\xe2") << most;
  }
}

TEST(NumberRanges, JoinsNeighbours) {
  EXPECT_EQ(NumberRanges(std::vector<int32_t>{}, 10), "");
  EXPECT_EQ(NumberRanges(std::vector<int32_t>{7}, 10), "7");
  EXPECT_EQ(NumberRanges(std::vector<int32_t>{0, 1, 2, 5, 8, 9}, 10), "0-2,5,8-9");
  EXPECT_EQ(NumberRanges(std::vector<size_t>{0, 2}, 3), "0,2");
}

TEST(NumberRanges, CutAListThatIsTooLongAfterANumber) {
  std::vector<int64_t> odd(1000);
  std::iota(odd.begin(), odd.end(), 0);
  for (int64_t& number : odd) number = 2 * number + 1;
  EXPECT_EQ(NumberRanges(odd, 10), "1,3,5,7..");
  for (size_t most = 2; most < 40; ++most) EXPECT_LE(NumberRanges(odd, most).size(), most);
}

}  // namespace
}  // namespace gdn::bounded_text_test
