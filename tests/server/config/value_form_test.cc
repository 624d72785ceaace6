#include "server/config/value_form.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/config/quota_section.h"

namespace gdn::value_form_test {
namespace {

template <typename T>
std::string ReadAndPrint(const ValueForm<T>& form, const std::string& text) {
  T value = {};
  const std::string expected = form.read(text, value);
  return expected.empty() ? form.print(value) : expected;
}

TEST(ValueForm, ReadsAndPrintsEveryForm) {
  EXPECT_EQ(ReadAndPrint(Text(), " any, =text"), " any, =text");
  EXPECT_EQ(ReadAndPrint(Switch(), "yes"), "true");
  EXPECT_EQ(ReadAndPrint(List(), "a:1,b:2"), "a:1,b:2");
  EXPECT_EQ(ReadAndPrint(List(), ""), "");
  EXPECT_EQ(ReadAndPrint(Bytes(), "8GiB"), "8589934592");
  EXPECT_EQ(ReadAndPrint(Bytes(), "512KiB"), "524288");
  EXPECT_EQ(ReadAndPrint(BytesOrAuto(), "auto"), "auto");
  EXPECT_EQ(ReadAndPrint(BytesOrAuto(), "1MiB"), "1048576");
  EXPECT_EQ(ReadAndPrint(Time(), "90s"), "1m30s");
  EXPECT_EQ(ReadAndPrint(TimeOrNever(), "0"), "0");
  EXPECT_EQ(ReadAndPrint(Whole(1, 64), "64"), "64");
  EXPECT_EQ(ReadAndPrint(OneOf({"a", "b"}), "b"), "b");
  EXPECT_EQ(ReadAndPrint(Quotas(), "default: {sessions: 5}"), "{default: {sessions: 5}}");
}

TEST(ValueForm, SplitsPairsAtTheFirstEqualsSign) {
  std::vector<std::pair<std::string, std::string>> pairs;
  EXPECT_EQ(Pairs().read("a=/m=1,b,=c", pairs), "");
  const std::vector<std::pair<std::string, std::string>> expected = {{"a", "/m=1"}, {"b", ""}, {"", "c"}};
  EXPECT_EQ(pairs, expected);
  EXPECT_EQ(Pairs().print({{"a", "/m"}, {"b", "/n"}}), "a=/m,b=/n");
}

TEST(ValueForm, NoTimeIsNever) {
  absl::Duration time;
  EXPECT_EQ(TimeOrNever().read("0", time), "");
  EXPECT_EQ(time, absl::InfiniteDuration());
  EXPECT_EQ(TimeOrNever().read("2s", time), "");
  EXPECT_EQ(time, absl::Seconds(2));
}

TEST(ValueForm, ARefusedTextLeavesTheValueAlone) {
  int32_t number = 7;
  EXPECT_EQ(Whole(1, 64).read("65", number), "expected a whole number, 1 .. 64");
  EXPECT_EQ(number, 7);
}

TEST(ValueForm, SaysWhatWasExpected) {
  EXPECT_EQ(ReadAndPrint(Switch(), "7"), "expected true or false");
  EXPECT_EQ(ReadAndPrint(Whole<int32_t>(0), "99999999999"), "expected a whole number, 0 .. 2147483647");
  EXPECT_EQ(ReadAndPrint(Whole(1, 64), "many"), "expected a whole number, 1 .. 64");
  for (const std::string text : {"", "-1", "8GB", "1.5MiB", "9223372036854775807KiB"}) {
    EXPECT_EQ(ReadAndPrint(Bytes(), text), "expected a number of bytes such as 1048576, 512KiB, 64MiB or 8GiB") << text;
  }
  EXPECT_EQ(ReadAndPrint(Bytes(4096, 8192), "1"),
            "expected a number of bytes such as 1048576, 512KiB, 64MiB or 8GiB; 4096 .. 8192");
  EXPECT_EQ(ReadAndPrint(Time(), "-5s"), "expected a time with its unit, such as 500ms, 30s or 5m, or 0");
  EXPECT_EQ(ReadAndPrint(Time(absl::Seconds(2), absl::Hours(1)), "2h"),
            "expected a time with its unit, such as 500ms, 30s or 5m; 2s .. 1h");
  EXPECT_EQ(ReadAndPrint(Time(absl::Seconds(1)), "0"),
            "expected a time with its unit, such as 500ms, 30s or 5m; 1s or more");
  EXPECT_EQ(ReadAndPrint(OneOf({"a", "b", "c"}), "d"), "expected a, b or c");
  EXPECT_EQ(ReadAndPrint(OneOf<bool>({{"q8_0", true}, {"", false}}), "q4"), "expected q8_0 or nothing");
  EXPECT_EQ(ReadAndPrint(Quotas(), "defaults: {}"),
            "expected quotas as docs/how-to/configure.md has them: unknown key 'defaults' in quotas, did you mean "
            "'default'?");
}

}  // namespace
}  // namespace gdn::value_form_test
