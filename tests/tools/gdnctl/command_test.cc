#include "tools/gdnctl/command.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "client/cpp/testing/fake_gdn_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/gdnctl/run_command.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/print.h"

ABSL_DECLARE_FLAG(absl::Duration, timeout);

namespace gdn::command_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string>* g_arguments = new std::vector<std::string>;

class CommandLine : public ::testing::Test {
 protected:
  Outcome Run(const std::vector<std::string>& arguments, const std::vector<Command>& commands) {
    return RunCommand(commands, arguments);
  }

  Outcome Run(const std::vector<std::string>& arguments) {
    return Run(
        arguments,
        {{.name = "echo",
          .arguments = "[WORD ...]",
          .summary = "Echo",
          .flags = {"json"},
          .run = [](const std::vector<std::string>& words) -> absl::StatusOr<int> {
            *g_arguments = words;
            return 0;
          }},
         {.name = "echo fail", .summary = "Fail", .run = [](const std::vector<std::string>&) -> absl::StatusOr<int> {
            return absl::NotFoundError("nothing there");
          }}});
  }

  absl::FlagSaver saver_;
};

TEST_F(CommandLine, SetsFlagsInEveryForm) {
  EXPECT_THAT(Run({"echo", "a", "--target=x:1", "--timeout", "3s", "--json", "b", "--", "--c"}), ExitsWith(kExitOk));
  EXPECT_EQ(absl::GetFlag(FLAGS_target), "x:1");
  EXPECT_EQ(absl::GetFlag(FLAGS_timeout), absl::Seconds(3));
  EXPECT_TRUE(absl::GetFlag(FLAGS_json));
  EXPECT_THAT(*g_arguments, ElementsAre("a", "b", "--c"));
  EXPECT_THAT(Run({"echo", "--nojson"}), ExitsWith(kExitOk));
  EXPECT_FALSE(absl::GetFlag(FLAGS_json));
}

TEST_F(CommandLine, TakesDashesForUnderscoresInFlagNames) {
  const Outcome outcome = Run({"prefill", "--session=a,b", "--expected-token-count", "3"}, StepCommands());
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("--session with one id"));  // so the other flag was taken
}

TEST_F(CommandLine, ExitsWithTwoOnBadUsage) {
  const std::vector<std::vector<std::string>> cases = {{},
                                                       {"bogus"},
                                                       {"echo", "--bogus"},
                                                       {"echo", "--timeout=soon"},
                                                       {"echo", "--timeout"},
                                                       {"echo", "--json=maybe"},
                                                       {"echo fail", "x"},
                                                       {"echo", "fail", "x"},
                                                       {"echo", "fail", "--json"}};
  for (const auto& arguments : cases) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, kExitUsage) << ::testing::PrintToString(arguments);
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(outcome.err, HasSubstr("gdnctl"));
  }
}

TEST_F(CommandLine, ExitsWithOneAndTheCodeWhenACommandFails) {
  const Outcome outcome = Run({"echo", "fail"});
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  EXPECT_EQ(outcome.err, "gdnctl: NOT_FOUND: nothing there\n");
}

TEST_F(CommandLine, HelpsOnStdout) {
  EXPECT_THAT(Run({"--help"}).out, HasSubstr("echo fail"));
  const Outcome outcome = Run({"echo", "--help"});
  EXPECT_EQ(outcome.exit_code, kExitOk);
  EXPECT_THAT(outcome.out, HasSubstr("--json"));
  EXPECT_THAT(outcome.out, HasSubstr("--target"));
}

TEST_F(CommandLine, HelpTellsOfOneCommandOrOfAGroup) {
  EXPECT_THAT(Run({"help"}).out, HasSubstr("Commands:"));
  EXPECT_EQ(Run({"help", "echo", "fail"}).out, Run({"echo", "fail", "--help"}).out);
  EXPECT_THAT(Run({"help", "echo"}).out,
              AllOf(HasSubstr("gdnctl echo"), HasSubstr("Commands of 'echo':\n  echo fail")));
  const Outcome group = Run({"state", "--help"}, StateCommands());
  EXPECT_EQ(group.exit_code, kExitOk);
  EXPECT_THAT(group.out, HasSubstr("  state export"));
  EXPECT_THAT(Run({"help", "bogus"}), ExitsWith(kExitUsage));
}

TEST_F(CommandLine, SuggestsWhatWasProbablyMeant) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"eco"}, "unknown command 'eco'; did you mean 'echo'?"},
      {{"echo", "fial"}, ""},  // an argument of echo, which takes words
      {{"sesions", "list"}, "did you mean 'sessions list'?"},
      {{"sessions", "lst"}, "unknown command 'sessions lst'; did you mean 'sessions list'?"},
      {{"sessions", "list", "--targt=x"}, "unknown flag --targt; did you mean --target?"},
      {{"sessions", "list", "--timeout=5"}, "did you mean 5s?"},
      {{"xyzzy"}, "'gdnctl help' lists all"},
      {{"hlep"}, "did you mean 'help'?"}};
  for (const auto& [arguments, words] : cases) {
    const Outcome outcome = arguments[0].starts_with("s") ? Run(arguments, SessionCommands()) : Run(arguments);
    EXPECT_THAT(outcome.err, HasSubstr(words)) << ::testing::PrintToString(arguments);
  }
  EXPECT_THAT(Run({"state"}, StateCommands()).err, HasSubstr("'state' needs one more word: 'state export'"));
  EXPECT_LT(Run({std::string(5000, 'x')}).err.size(), 300u);
}

TEST_F(CommandLine, TellsItsVersion) {
  for (const char* const form : {"--version", "version"}) {
    const Outcome outcome = Run({form});
    EXPECT_EQ(outcome.exit_code, kExitOk);
    EXPECT_THAT(outcome.out, ContainsRegex("^gdnctl [0-9.]+\ncommit .*, built by .*\nbackends: cpu"));
  }
  EXPECT_EQ(Run({"echo", "--version"}).out, Run({"--version"}).out);
}

TEST_F(CommandLine, NamesTheNextStepAfterARefusal) {
  FakeGdnService service;
  const LoopbackServer server(&service);
  const Outcome outcome = Run({"sessions", "show", "nobody", "--target=" + server.target()}, SessionCommands());
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("'gdnctl sessions list' shows your sessions"));
}

TEST_F(CommandLine, EveryCommandHasFlagsThatExistAndHelp) {
  for (const auto& group :
       {InfoCommands(), InspectCommands(), SessionCommands(), LeaseCommands(), StepCommands(), StateCommands(),
        StateViewCommands(), SliceCommands(), ReplayCommands(), TraceCommands(), TopCommands(), AdminCommands(),
        TokenCommands(), HealthCommands(), DoctorCommands(), TryCommands()}) {
    for (const Command& command : group) {
      std::vector<std::string> arguments;
      std::istringstream words{std::string(command.name)};
      for (std::string word; words >> word;) arguments.push_back(word);
      for (const std::string_view flag : command.flags) {
        ASSERT_NE(absl::FindCommandLineFlag(std::string(flag)), nullptr) << command.name << " --" << flag;
      }
      arguments.emplace_back("--help");
      EXPECT_THAT(Run(arguments, group).out, HasSubstr("gdnctl " + std::string(command.name)));
    }
  }
}

TEST_F(CommandLine, ReplayPrintsTheFailureLastAndExitsWithOne) {
  FakeGdnService service;
  const LoopbackServer server(&service);
  const Outcome outcome =
      Run({"replay", "--target=" + server.target(), "--model=toy", "--io=/nonexistent"}, ReplayCommands());
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  EXPECT_THAT(outcome.out, ::testing::StartsWith("replay FAILED: NOT_FOUND"));
}

TEST_F(CommandLine, SaysWhereNoServerAnswers) {
  const Outcome outcome = Run({"info", "--target=127.0.0.1:1", "--timeout=10s"}, InfoCommands());
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("127.0.0.1:1: nothing listens there. Start a server"));
}

TEST_F(CommandLine, ShowsTheServer) {
  FakeGdnService service;
  const LoopbackServer server(&service);
  const Outcome info = Run({"info", "--target=" + server.target()}, InfoCommands());
  EXPECT_THAT(info.out, HasSubstr("gdn_server 0.0.0-fake"));
  EXPECT_THAT(info.out, HasSubstr("tier         disk    3 sessions, 64.0 MiB; 0 stores"));
  EXPECT_THAT(info.out, HasSubstr("2 sessions recovered"));
  EXPECT_THAT(Run({"info", "--json", "--target=" + server.target()}, InfoCommands()).out,
              HasSubstr("\"version\": \"0.0.0-fake\""));
}

TEST(Names, GetTheirCollectionOnce) {
  EXPECT_EQ(*ToModelName("qwen"), "models/qwen");
  EXPECT_EQ(*ToModelName("models/qwen"), "models/qwen");
  EXPECT_EQ(*ToSessionName("a"), "sessions/a");
  EXPECT_FALSE(ToModelName("").ok());
  EXPECT_FALSE(ToSessionName("sessions/").ok());
}

TEST(ParseOperatorSpec, TakesFourOrFiveNumbers) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto spec, ParseOperatorSpec({"16", "32", "128", "64", "3"}));
  EXPECT_EQ(spec.key_heads(), 16);
  EXPECT_EQ(spec.value_heads(), 32);
  EXPECT_EQ(spec.key_dim(), 128);
  EXPECT_EQ(spec.value_dim(), 64);
  EXPECT_EQ(spec.layer_count(), 3);
  EXPECT_EQ(ParseOperatorSpec({"1", "2", "3", "4"})->layer_count(), 0);
  EXPECT_EQ(ParseOperatorSpec({"1", "2", "3", "4"})->decay(), v1::DECAY_KIND_UNSPECIFIED);
  EXPECT_EQ(ParseOperatorSpec({"1", "2", "3", "4", "per-channel"})->decay(), v1::DECAY_KIND_PER_CHANNEL);
  EXPECT_EQ(ParseOperatorSpec({"1", "2", "3", "4", "5", "per-channel"})->layer_count(), 5);
  EXPECT_FALSE(ParseOperatorSpec({"1", "2", "3", "per-channel"}).ok());
  EXPECT_FALSE(ParseOperatorSpec({"1", "2", "3", "4", "per-channel", "5"}).ok());
  EXPECT_FALSE(ParseOperatorSpec({"1", "2", "3"}).ok());
  EXPECT_FALSE(ParseOperatorSpec({"1", "2", "3", "x"}).ok());
  EXPECT_FALSE(ParseOperatorSpec({"x", "1", "2", "3", "4"}).ok());
  EXPECT_FALSE(ParseOperatorSpec({"1", "2", "3", "4", "5", "6"}).ok());
}

TEST(FormatRanges, JoinsNeighbours) {
  EXPECT_EQ(FormatRanges({0, 1, 2, 4, 6, 7}), "0..2, 4, 6..7");
  EXPECT_EQ(FormatRanges({}), "none");
}

TEST(FormatBytes, PicksAUnit) {
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(64 << 20), "64.0 MiB");
}

}  // namespace
}  // namespace gdn::command_test
