// Files of flags, good ones and every kind of bad one.
#include "server/config/config_file.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"

namespace gdn::config_file_test {
namespace {

const ConfigKeys kKeys = {{"checkpoint-every", ValueShape::kText}, {"listen", ValueShape::kList},
                          {"quotas", ValueShape::kQuotaMap},       {"redis", ValueShape::kText},
                          {"reflection", ValueShape::kSwitch},     {"threads", ValueShape::kText}};

// All that is wrong with a file, a line each.
std::vector<std::string> FaultsOf(const std::string& text) {
  std::vector<ConfigFault> faults;
  ParseConfig(text, kKeys, faults);
  std::vector<std::string> lines;
  for (const ConfigFault& fault : faults) lines.push_back(fault.ToString("f"));
  return lines;
}

std::map<std::string, std::string> TextsOf(const std::string& text) {
  std::vector<ConfigFault> faults;
  std::map<std::string, std::string> texts;
  for (const auto& [name, value] : ParseConfig(text, kKeys, faults)) texts.emplace(name, value.text);
  EXPECT_TRUE(faults.empty()) << text;
  return texts;
}

TEST(ConfigFile, TakesTextsOfEveryShape) {
  const std::map<std::string, std::string> expected = {
      {"checkpoint-every", "2m"}, {"listen", "b:2,c:3"},   {"quotas", "{default: {sessions: 5}}"},
      {"redis", "unix:/r"},       {"reflection", "false"}, {"threads", "7"}};
  EXPECT_EQ(TextsOf("# a comment\nthreads: 7\nreflection: false\ncheckpoint_every: 2m\nredis: \"unix:/r\"\n"
                    "listen: [b:2, 'c:3']\nquotas: {default: {sessions: 5}}\n"),
            expected);
}

TEST(ConfigFile, TakesListsAsSequencesMapsAndText) {
  for (const std::string text : {"listen: [b=2, c=3]", "listen:\n  - b=2\n  - c=3", "listen: {b: 2, c: 3}",
                                 "listen: b=2,c=3", "listen:\n  b: 2\n  c: 3\n"}) {
    std::vector<ConfigFault> faults;
    const ConfigFile file = ParseConfig(text, kKeys, faults);
    ASSERT_TRUE(faults.empty()) << text;
    EXPECT_EQ(file.at("listen").text, "b=2,c=3") << text;
  }
}

TEST(ConfigFile, TellsEveryFaultWithItsPlace) {
  struct Case {
    std::string text;
    std::vector<std::string> faults;
  };
  const std::vector<Case> cases = {
      {"thraeds: 7", {"f:1:1: unknown key 'thraeds' in the file, did you mean 'threads'?"}},
      {"zzzzzzzzzzzz: 7",
       {"f:1:1: unknown key 'zzzzzzzzzzzz' in the file, expected the name of a flag without --; gdn_server --help "
        "lists them"}},
      {"threads: 7\nredis: r\nthreads: 8", {"f:3:1: 'threads' stands twice in the file, first in line 1"}},
      {"threads: [1, 2]", {"f:1:10: threads is a list, expected one value"}},
      {"threads: {a: 1}", {"f:1:10: threads is a list, expected one value"}},
      {"listen: [a, [b]]", {"f:1:13: a list element is a list or a map; expected text"}},
      {"listen: [a, 'b,c']", {"f:1:13: a list element has a comma, which separates elements; write two elements"}},
      {"[a, b]", {"f:1:1: the file is no map, expected lines of KEY: VALUE"}},
      {"just words", {"f:1:1: the file is no map, expected lines of KEY: VALUE"}},
      {"threads: 1\n---\nthreads: 2", {"f:3:1: a second YAML document (after ---), expected one"}},
      {"threads: &a 1\nredis: *a",
       {"f:1:10: anchors (&name) are not supported; write the value itself",
        "f:2:8: aliases (*name) are not supported; write the value itself"}},
      {"thraeds: 1\nredis: [x]\nquotas: {all: {sesions: 1}}",
       {"f:1:1: unknown key 'thraeds' in the file, did you mean 'threads'?",
        "f:2:8: redis is a list, expected one value",
        "f:3:16: unknown key 'sesions' in all, did you mean 'sessions'?"}},
  };
  for (const Case& c : cases) EXPECT_EQ(FaultsOf(c.text), c.faults) << c.text;
}

TEST(ConfigFile, TellsWhereAFileIsNoYaml) {
  for (const std::string text : {"threads: 1\nlisten: [a", "threads: 1\n\"a: b", "threads: 1\n  every: 3: 4"}) {
    const std::vector<std::string> faults = FaultsOf(text);
    ASSERT_EQ(faults.size(), 1u) << text;
    EXPECT_TRUE(absl::StartsWith(faults[0], "f:2:") || absl::StartsWith(faults[0], "f:3:")) << faults[0];
    EXPECT_TRUE(absl::StrContains(faults[0], "this is no YAML")) << faults[0];
  }
}

TEST(ConfigFile, ShowsWhatNobodySees) {
  const std::vector<std::string> faults = FaultsOf("\"thre\\u0007ads\": 1\n\"a\\nb\": 2\n");
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_NE(faults[0].find("'thre\\x07ads'"), std::string::npos) << faults[0];
  EXPECT_NE(faults[1].find("'a\\x0ab'"), std::string::npos) << faults[1];
}

TEST(ConfigFile, TakesAnEmptyFile) {
  EXPECT_TRUE(FaultsOf("").empty());
  EXPECT_TRUE(FaultsOf("# nothing\n").empty());
}

TEST(ConfigFile, RefusesAFileThatIsTooLargeOrTooDeep) {
  EXPECT_EQ(FaultsOf(std::string(kMostConfigBytes + 1, '#')).size(), 1u);
  EXPECT_FALSE(FaultsOf("listen: " + std::string(100'000, '[')).empty());
  EXPECT_FALSE(FaultsOf("listen: [[[[a]]]]").empty());
}

TEST(ConfigFile, RefusesWhatIsNoText) {
  using Faults = std::vector<std::string>;
  EXPECT_EQ(FaultsOf(std::string("# a\nthreads: {\0", 15)), Faults{"f:2:11: a byte 0x00, expected text in UTF-8"});
  EXPECT_EQ(FaultsOf("\xff\xfe"), Faults{"f:1:1: a byte 0xff, expected text in UTF-8"});
}

TEST(ConfigFile, FollowsNoAlias) {
  std::string bomb = "listen: &a0 [x, x]\n";
  for (int i = 1; i < 60; ++i) {
    bomb += "k" + std::to_string(i) + ": &a" + std::to_string(i) + " [*a" + std::to_string(i - 1) + ", *a" +
            std::to_string(i - 1) + "]\n";
  }
  EXPECT_GT(FaultsOf(bomb).size(), 100u);
}

TEST(ConfigFile, RefusesAFileThatIsNotThere) {
  std::vector<ConfigFault> faults;
  ReadConfig("/nowhere/at/all.yaml", kKeys, faults);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].ToString("f"),
            "f: the file of --config: cannot read '/nowhere/at/all.yaml': No such file or directory");
  faults.clear();
  ReadConfig("/", kKeys, faults);
  EXPECT_EQ(faults.size(), 1u);
}

TEST(ConfigFile, PutsAComplaintWhereItsFlagStands) {
  std::vector<ConfigFault> faults;
  const ConfigFile file = ParseConfig("\ncheckpoint-every: 1s", kKeys, faults);
  EXPECT_EQ(PlaceOf("--threads and --checkpoint-every are both given", file).line, 2);
  EXPECT_EQ(PlaceOf("--threads is 3", file).line, 0);
}

TEST(ConfigFile, PrintsWhatItReads) {
  const std::map<std::string, std::string> values = {{"redis", std::string("a \"b\" \\ 'c': #d\ne\t\r\x1b\x7f\0f", 23)},
                                                     {"threads", "11"}};
  const std::string printed = PrintConfig(values);
  EXPECT_EQ(TextsOf(printed), values) << printed;
}

TEST(ConfigFile, PrintsNoPassword) {
  EXPECT_EQ(PrintConfig({{"redis", "redis://:se@cret@host:1/0"}}), "redis: \"redis://[hidden]@host:1/0\"\n");
}

}  // namespace
}  // namespace gdn::config_file_test
