#include "server/rpc/callers/principal_list.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tests/support/assert_ok.h"

namespace gdn::principal_list_test {
namespace {

std::string Listed(const std::string& entries) { return "{\"principals\": [" + entries + "]}"; }
std::string Digits(char digit) { return std::string(64, digit); }

TEST(PrincipalList, FindsWhomItLists) {
  GDN_ASSERT_OK_AND_ASSIGN(
      const PrincipalList list,
      ParsePrincipalList(Listed("{\"name\": \"a\", \"weight\": 2.5, \"sha256\": [\"" + Digits('0') +
                                "\", \"ba7816bf8f01cfea414140de5dae2223b00361a396177A9CB410FF61F20015AD\"]},"
                                "{\"name\": \"b\", \"sha256\": [\"" +
                                Digits('1') + "\"]}"),
                         "f"));
  EXPECT_EQ(list.weights, (std::map<std::string, double>{{"a", 2.5}, {"b", 1}}));
  const std::string* const found = list.Find({"other", "abc"});  // the digest is FIPS 180's example
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(*found, "a");
  EXPECT_EQ(list.Find({"abcd"}), nullptr);
  EXPECT_EQ(list.Find({}), nullptr);
  EXPECT_EQ(PrincipalList().Find({"abc"}), nullptr);
}

TEST(PrincipalList, SaysWhatIsWrongWithAFile) {
  const std::string good = "\"sha256\": [\"" + Digits('0') + "\"]";
  const std::vector<std::pair<std::string, std::string>> files = {
      {"{", "no JSON"},
      {"[]", "no array 'principals'"},
      {Listed("3"), "without a name"},
      {Listed("{" + good + "}"), "without a name"},
      {Listed("{\"name\": \"\", " + good + "}"), "without a name"},
      {Listed("{\"name\": \"a\"}"), "'a' has no sha256"},
      {Listed("{\"name\": \"a\", \"sha256\": []}"), "'a' has no sha256"},
      {Listed("{\"name\": \"a\", \"sha256\": [\"abc\"]}"), "64 hexadecimal digits"},
      {Listed("{\"name\": \"a\", \"sha256\": [\"" + Digits('g') + "\"]}"), "64 hexadecimal digits"},
      {Listed("{\"name\": \"a\", \"wieght\": 1, " + good + "}"), "'wieght'"},
      {Listed("{\"name\": \"a\", \"weight\": 0, " + good + "}"), "expected above 0"},
      {Listed("{\"name\": \"a\", \"weight\": -1, " + good + "}"), "expected above 0"},
      {Listed("{\"name\": \"a\", \"weight\": 1e300, " + good + "}"), "at most"},
      {Listed("{\"name\": \"a\", \"weight\": \"2\", " + good + "}"), "no number"},
      {Listed("{\"name\": \"a\", " + good + "}, {\"name\": \"a\", " + good + "}"), "'a' is there twice"},
      {Listed("{\"name\": \"a\", " + good + "}, {\"name\": \"b\", " + good + "}"), "the same sha256"},
  };
  for (const auto& [text, what] : files) {
    const absl::Status status = ParsePrincipalList(text, "FILE").status();
    ExpectError(status, absl::StatusCode::kInvalidArgument, reason::kInvalidSpec);
    EXPECT_NE(std::string(status.message()).find(what), std::string::npos) << text << ": " << status;
    EXPECT_NE(std::string(status.message()).find("FILE"), std::string::npos) << status;
  }
  EXPECT_FALSE(ReadPrincipalList("/nowhere/at-all").ok());
}

}  // namespace
}  // namespace gdn::principal_list_test
