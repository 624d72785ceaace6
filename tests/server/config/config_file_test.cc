// Files of flags, good ones and every kind of bad one.
#include "server/config/config_file.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"

ABSL_FLAG(int32_t, config_test_threads, 3, "N");
ABSL_FLAG(bool, config_test_reflection, true, "");
ABSL_FLAG(absl::Duration, config_test_every, absl::Seconds(5), "TIME");
ABSL_FLAG(std::string, config_test_redis, "", "ADDRESS");
ABSL_FLAG(std::vector<std::string>, config_test_listen, {"a:1"}, "ADDRESS");

namespace gdn {
namespace {

ConfigKeys TestKeys() {
  ConfigKeys keys;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (absl::StartsWith(name, "config_test_")) keys.emplace(std::string(name).substr(12), flag);
  }
  return keys;
}

// All that is wrong with a file, a line each.
std::vector<std::string> FaultsOf(const std::string& text) {
  const absl::FlagSaver saver;
  std::vector<ConfigFault> faults;
  const ConfigKeys keys = TestKeys();
  ApplyConfig(ParseConfig(text, keys, faults), keys, {}, faults);
  std::vector<std::string> lines;
  for (const ConfigFault& fault : faults) lines.push_back(fault.ToString("f"));
  return lines;
}

TEST(ConfigFile, SetsFlagsOfEveryType) {
  const absl::FlagSaver saver;
  const ConfigKeys keys = TestKeys();
  std::vector<ConfigFault> faults;
  const ConfigFile file =
      ParseConfig("# a comment\nthreads: 7\nreflection: false\nevery: 2m\nredis: \"unix:/r\"\nlisten: [b:2, 'c:3']\n",
                  keys, faults);
  ApplyConfig(file, keys, {}, faults);
  EXPECT_TRUE(faults.empty()) << faults[0].ToString("f");
  EXPECT_EQ(absl::GetFlag(FLAGS_config_test_threads), 7);
  EXPECT_FALSE(absl::GetFlag(FLAGS_config_test_reflection));
  EXPECT_EQ(absl::GetFlag(FLAGS_config_test_every), absl::Minutes(2));
  EXPECT_EQ(absl::GetFlag(FLAGS_config_test_redis), "unix:/r");
  EXPECT_EQ(absl::GetFlag(FLAGS_config_test_listen), (std::vector<std::string>{"b:2", "c:3"}));
}

TEST(ConfigFile, TakesListsAsSequencesMapsAndText) {
  for (const std::string text : {"listen: [b=2, c=3]", "listen:\n  - b=2\n  - c=3", "listen: {b: 2, c: 3}",
                                 "listen: b=2,c=3", "listen:\n  b: 2\n  c: 3\n"}) {
    std::vector<ConfigFault> faults;
    const ConfigFile file = ParseConfig(text, TestKeys(), faults);
    ASSERT_TRUE(faults.empty()) << text;
    EXPECT_EQ(file.at("listen").text, "b=2,c=3") << text;
  }
}

TEST(ConfigFile, TriesFlagsThatTheCommandLineGaveAndLeavesThem) {
  const absl::FlagSaver saver;
  const ConfigKeys keys = TestKeys();
  absl::SetFlag(&FLAGS_config_test_threads, 9);
  std::vector<ConfigFault> faults;
  ApplyConfig(ParseConfig("threads: 7", keys, faults), keys, {"threads"}, faults);
  EXPECT_TRUE(faults.empty());
  EXPECT_EQ(absl::GetFlag(FLAGS_config_test_threads), 9);
  ApplyConfig(ParseConfig("threads: x", keys, faults), keys, {"threads"}, faults);
  EXPECT_EQ(faults.size(), 1u);
  EXPECT_EQ(absl::GetFlag(FLAGS_config_test_threads), 9);
}

TEST(ConfigFile, TellsEveryFaultWithItsPlace) {
  struct Case {
    std::string text;
    std::vector<std::string> faults;
  };
  const std::vector<Case> cases = {
      {"thraeds: 7", {"f:1:1: unknown key 'thraeds', did you mean 'threads'?"}},
      {"zzzzzzzzzzzz: 7",
       {"f:1:1: unknown key 'zzzzzzzzzzzz', expected the name of a flag without --; gdn_server --help lists them"}},
      {"threads: 7\nevery: 1s\nthreads: 8", {"f:3:1: threads stands twice, first in line 1"}},
      {"\nthreads: many", {"f:2:10: threads is 'many', expected a whole number of 32 bits"}},
      {"threads: 99999999999", {"f:1:10: threads is '99999999999', expected a whole number of 32 bits"}},
      {"reflection: 7", {"f:1:13: reflection is '7', expected true or false"}},
      {"every: 7 parsecs",
       {"f:1:8: every is '7 parsecs', expected a time with its unit, such as 500ms, 30s or 5m, or 0"}},
      {"threads: [1, 2]", {"f:1:10: threads is a list, expected one value"}},
      {"threads: {a: 1}", {"f:1:10: threads is a list, expected one value"}},
      {"listen: [a, [b]]", {"f:1:13: an element that is no text, expected text"}},
      {"listen: [a, 'b,c']", {"f:1:13: an element with a comma, which parts elements"}},
      {"[a, b]", {"f:1:1: the file is no map, expected lines of KEY: VALUE"}},
      {"just words", {"f:1:1: the file is no map, expected lines of KEY: VALUE"}},
      {"threads: 1\n---\nthreads: 2", {"f:3:1: a second YAML document (after ---), expected one"}},
      {"threads: &a 1\nredis: *a",
       {"f:1:10: an anchor (&name), which is not taken",
        "f:2:8: an alias (*name), which is not taken; write the value itself"}},
      {"thraeds: 1\nthreads: x\nevery: y",
       {"f:1:1: unknown key 'thraeds', did you mean 'threads'?",
        "f:3:8: every is 'y', expected a time with its unit, such as 500ms, 30s or 5m, or 0",
        "f:2:10: threads is 'x', expected a whole number of 32 bits"}},
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
  ReadConfig("/nowhere/at/all.yaml", TestKeys(), faults);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].ToString("f"),
            "f: the file of --config: cannot read '/nowhere/at/all.yaml': No such file or directory");
  faults.clear();
  ReadConfig("/", TestKeys(), faults);
  EXPECT_EQ(faults.size(), 1u);
}

TEST(ConfigFile, PutsAComplaintWhereItsFlagStands) {
  std::vector<ConfigFault> faults;
  const ConfigFile file = ParseConfig("\nevery: 1s", TestKeys(), faults);
  EXPECT_EQ(PlaceOf("--threads and --every are both given", file).line, 2);
  EXPECT_EQ(PlaceOf("--threads is 3", file).line, 0);
}

TEST(ConfigFile, PrintsWhatItReads) {
  const absl::FlagSaver saver;
  const ConfigKeys keys = TestKeys();
  absl::SetFlag(&FLAGS_config_test_redis, std::string("a \"b\" \\ 'c': #d\ne\t\r\x1b\x7f\0f", 23));
  absl::SetFlag(&FLAGS_config_test_threads, 11);
  const std::string printed = PrintConfig(keys);
  const std::string redis = absl::GetFlag(FLAGS_config_test_redis);
  absl::SetFlag(&FLAGS_config_test_redis, "");
  absl::SetFlag(&FLAGS_config_test_threads, 0);
  std::vector<ConfigFault> faults;
  ApplyConfig(ParseConfig(printed, keys, faults), keys, {}, faults);
  EXPECT_TRUE(faults.empty()) << printed;
  EXPECT_EQ(PrintConfig(keys), printed);
  EXPECT_EQ(absl::GetFlag(FLAGS_config_test_redis), redis);
  EXPECT_EQ(absl::GetFlag(FLAGS_config_test_threads), 11);
}

TEST(ConfigFile, PrintsNoPassword) {
  const absl::FlagSaver saver;
  absl::SetFlag(&FLAGS_config_test_redis, "redis://:se@cret@host:1/0");
  const std::string printed = PrintConfig(TestKeys());
  EXPECT_FALSE(absl::StrContains(printed, "cret")) << printed;
  EXPECT_TRUE(absl::StrContains(printed, "redis://[hidden]@host:1/0")) << printed;
}

}  // namespace
}  // namespace gdn
