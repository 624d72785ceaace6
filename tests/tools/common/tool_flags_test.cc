#include "tools/common/tool_flags.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"

ABSL_FLAG(bool, test_switch, false, "A switch.");
ABSL_FLAG(int32_t, test_count, 3, "A count.");
ABSL_FLAG(double, test_ratio, 0.5, "A ratio.");
ABSL_FLAG(absl::Duration, test_wait, absl::Seconds(1), "A time.");
ABSL_FLAG(std::string, test_name, "", "A name.");

namespace gdn::tool_flags_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

bool IsOfTest(const absl::CommandLineFlag& flag) { return absl::EndsWith(flag.Filename(), "tool_flags_test.cc"); }

class ToolFlagsTest : public ::testing::Test {
 protected:
  const absl::FlagSaver saver_;
};

TEST_F(ToolFlagsTest, SetsFlagsInEveryForm) {
  GDN_ASSERT_OK_AND_ASSIGN(const CommandFlags line,
                           SetFlags({"a", "--test-count=4", "-test_wait", "3s", "--test_switch", "b", "--test-name=x=y",
                                     "-", "--", "--test-count=9"},
                                    IsOfTest));
  EXPECT_THAT(line.positional, ElementsAre("a", "b", "-", "--test-count=9"));
  EXPECT_FALSE(line.help || line.version);
  EXPECT_EQ(absl::GetFlag(FLAGS_test_count), 4);
  EXPECT_EQ(absl::GetFlag(FLAGS_test_wait), absl::Seconds(3));
  EXPECT_TRUE(absl::GetFlag(FLAGS_test_switch));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_name), "x=y");
  ASSERT_TRUE(SetFlags({"--notest-switch"}, IsOfTest).ok());
  EXPECT_FALSE(absl::GetFlag(FLAGS_test_switch));
}

TEST_F(ToolFlagsTest, HelpIsAskedForInEveryForm) {
  for (const char* const form : {"--help", "-help", "-h"}) EXPECT_TRUE(SetFlags({form}, IsOfTest)->help) << form;
  EXPECT_TRUE(SetFlags({"--version"}, IsOfTest)->version);
  const std::string help = FlagsHelp(IsOfTest);
  EXPECT_THAT(help, HasSubstr("  --test-count               A count. Default: 3.\n"));
  EXPECT_THAT(help, HasSubstr("  --test-switch              A switch.\n"));
}

TEST_F(ToolFlagsTest, SaysWhatWasWrongAndWhatWasExpected) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--test-cuont=1", "unknown flag --test-cuont; did you mean --test-count?"},
      {"--v", "unknown flag --v"},  // Abseil's own, which the program does not take
      {"--test-count", "--test-count needs a value: --test-count=VALUE"},
      {"--test-count=many", "--test-count is 'many', expected a whole number of 32 bits"},
      {"--test-count=99999999999", "expected a whole number of 32 bits"},
      {"--test-ratio=half", "--test-ratio is 'half', expected a number"},
      {"--test-switch=maybe", "--test-switch is 'maybe', expected true or false"},
      {"--test-wait=5",
       "--test-wait is '5', expected a time with its unit, such as 500ms, 30s or 5m, or 0; did you mean 5s?"},
      {"--test-wait=soon", "such as 500ms, 30s or 5m, or 0"},
      {"--notest-count", "unknown flag --notest-count"}};
  for (const auto& [argument, words] : cases) {
    const absl::Status status = SetFlags({argument}, IsOfTest).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(words));
  }
  EXPECT_LT(SetFlags({"--" + std::string(5000, 'x')}, IsOfTest).status().message().size(), 200u);
  EXPECT_LT(SetFlags({"--test-count=" + std::string(5000, 'x')}, IsOfTest).status().message().size(), 250u);
}

}  // namespace
}  // namespace gdn::tool_flags_test
