#include "base/files/json_fault.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdn::json_fault_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(JsonFault, IsEmptyForJson) {
  for (const char* const text : {"{}", " [1, 2.5e3, \"// no comment\", null]\n", "\xef\xbb\xbf{\"a\": true}"}) {
    EXPECT_EQ(JsonFault(text), "") << text;
  }
}

TEST(JsonFault, SaysWhereAndWhat) {
  EXPECT_EQ(JsonFault(""), "it is empty");
  EXPECT_EQ(JsonFault(" \n\t"), "it is empty");
  EXPECT_THAT(JsonFault(std::string("\xff\xfe{\0}\0", 6)), HasSubstr("UTF-16"));
  EXPECT_THAT(JsonFault(std::string("{\0}\0", 4)), HasSubstr("UTF-16"));
  EXPECT_THAT(JsonFault("version https://git-lfs.github.com/spec/v1\noid sha256:1\n"), HasSubstr("git lfs pull"));
  for (const char* const comment : {"// of mine", "/* of mine */", "# of mine"}) {
    EXPECT_EQ(JsonFault("{\n  \"a\": 1,\n  " + std::string(comment) + "\n}"),
              "line 3, column 3: a comment, which JSON does not have; remove it");
  }
  EXPECT_THAT(JsonFault("{\"a\": 1,}"), StartsWith("line 1, column 9: syntax error while parsing object key"));
  EXPECT_THAT(JsonFault("{\n\"a\": }"), StartsWith("line 2, column 6: syntax error while parsing value"));
  EXPECT_THAT(JsonFault("{\"a\": 1"), HasSubstr("unexpected end of input"));
}

TEST(JsonFault, QuotesNothingOfTheText) {
  EXPECT_EQ(JsonFault("{\"a\": sEcReT}").find("EcReT"), std::string::npos);
  EXPECT_EQ(JsonFault("{\"a\": \"sEcReT\n\"}").find("EcReT"), std::string::npos);
}

TEST(QuoteNonFinite, MakesStringsOfNumbersWithoutDigits) {
  EXPECT_EQ(QuoteNonFinite(R"({"a": NaN, "b": [Infinity,-Infinity], "c": 1})"),
            R"({"a": "NaN", "b": ["Infinity","-Infinity"], "c": 1})");
  for (const char* const text : {R"({"NaN": "Infinity", "a": "\"NaN"})", R"([xNaN, NaNx, Infinity2])", ""}) {
    EXPECT_EQ(QuoteNonFinite(text), text);
  }
  EXPECT_EQ(QuoteNonFinite("NaN"), "\"NaN\"");
}

}  // namespace
}  // namespace gdn::json_fault_test
