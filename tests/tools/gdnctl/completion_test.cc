// The bash completion that gdnctl prints, in a real bash.
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/gdnctl/run_command.h"
#include "tools/gdnctl/commands.h"

namespace gdn::completion_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<Command> SomeCommands() {
  std::vector<Command> commands = SessionCommands();
  for (const auto& group : {InfoCommands(), TopCommands(), AdminCommands(), StateCommands()})
    commands.insert(commands.end(), group.begin(), group.end());
  return commands;
}

// Returns what bash offers if the line has these words, the last of them unfinished.
std::vector<std::string> Offered(const std::vector<std::string>& words) {
  const TempFolder folder;
  const Outcome printed = RunCommand(SomeCommands(), {"completion", "bash"});
  EXPECT_EQ(printed.exit_code, kExitOk) << printed.err;
  std::string script = printed.out + "\nCOMP_WORDS=(gdnctl";
  for (const std::string& word : words) script += " '" + word + "'";
  script += ")\nCOMP_CWORD=" + std::to_string(words.size()) +
            "\n_gdnctl\n(( ${#COMPREPLY[@]} == 0 )) || printf '%s\\n' \"${COMPREPLY[@]}\"\n";
  WriteFile(folder.path() + "/script", script);
  FILE* const bash = popen(("bash -u " + folder.path() + "/script 2>&1").c_str(), "r");
  std::string output;
  for (int c = std::fgetc(bash); c != EOF; c = std::fgetc(bash)) output += static_cast<char>(c);
  EXPECT_EQ(pclose(bash), 0) << output;
  std::vector<std::string> lines;
  std::istringstream stream(output);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(BashCompletion, OffersCommandsAndTheirSecondWords) {
  EXPECT_THAT(Offered({""}), AllOf(Contains("sessions"), Contains("top"), Contains("completion"), Contains("help"),
                                   Contains("drain"), Contains("metrics")));
  EXPECT_THAT(Offered({"mo"}), ElementsAre("models"));
  EXPECT_THAT(Offered({"sessions", "c"}), ElementsAre("create"));
  EXPECT_THAT(Offered({"sessions", "e"}), ElementsAre("evict"));
  EXPECT_THAT(Offered({"checkpoints", ""}), ElementsAre("list", "delete"));
  EXPECT_THAT(Offered({"completion", ""}), ElementsAre("bash", "zsh", "fish"));
  EXPECT_THAT(Offered({"info", ""}), ElementsAre());
}

TEST(BashCompletion, OffersTheFlagsOfTheCommand) {
  EXPECT_THAT(Offered({"sessions", "create", "--"}),
              AllOf(Contains("--model="), Contains("--json"), Contains("--target="), Contains("--token-file=")));
  EXPECT_THAT(Offered({"sessions", "--"}), Not(Contains("--model=")));
  EXPECT_THAT(Offered({"top", "--o"}), ElementsAre("--once"));
  EXPECT_THAT(Offered({"sessions", "list", "--a"}), ElementsAre("--all"));
  EXPECT_THAT(Offered({"sessions", "evict", "--"}), AllOf(Contains("--tier="), Contains("--subject=")));
  EXPECT_THAT(Offered({"drain", "--w"}), ElementsAre("--watch"));
}

TEST(Completion, OfAnUnknownShellNamesTheKnownOnes) {
  const Outcome outcome = RunCommand(SomeCommands(), {"completion", "csh"});
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("gdnctl completion bash, zsh or fish"));
}

// The lines that `command` prints, or nothing if the shell is not installed.
std::optional<std::vector<std::string>> LinesOf(const std::string& shell, const std::string& script) {
  if (std::system(("command -v " + shell + " >/dev/null").c_str()) != 0) return std::nullopt;
  const TempFolder folder;
  WriteFile(folder.path() + "/script", script);
  FILE* const run = popen((shell + " " + folder.path() + "/script 2>&1").c_str(), "r");
  std::string output;
  for (int c = std::fgetc(run); c != EOF; c = std::fgetc(run)) output += static_cast<char>(c);
  EXPECT_EQ(pclose(run), 0) << output;
  std::vector<std::string> lines;
  std::istringstream stream(output);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// zsh's own functions, which complete in a terminal alone, are replaced by ones that print what they are given.
std::optional<std::vector<std::string>> OfferedByZsh(const std::vector<std::string>& words) {
  std::string script = R"(compdef() { :; }
compset() { :; }
_files() { print -r -- FILES; }
_describe() { print -rl -- "${(@P)2}"; }
compadd() { while [[ "$1" != -- ]]; do shift; done; shift; print -rl -- "$@"; }
)" + RunCommand(SomeCommands(), {"completion", "zsh"}).out +
                       "words=(gdnctl";
  for (const std::string& word : words) script += " '" + word + "'";
  return LinesOf("zsh", script + ")\nCURRENT=" + std::to_string(words.size() + 1) + "\n_gdnctl\n");
}

TEST(ZshCompletion, OffersCommandsAndFlags) {
  const auto firsts = OfferedByZsh({""});
  if (!firsts.has_value()) GTEST_SKIP() << "no zsh here";
  EXPECT_THAT(*firsts, AllOf(Contains(HasSubstr("info:Show the server")), Contains(HasSubstr("help:")),
                             Contains(HasSubstr("sessions:List"))));
  EXPECT_THAT(*OfferedByZsh({"sessions", ""}), Contains(HasSubstr("create:Create a session")));
  EXPECT_THAT(*OfferedByZsh({"top", "--"}), AllOf(Contains("--once"), Contains("--interval="), Contains("--target=")));
  EXPECT_THAT(*OfferedByZsh({"sessions", "--"}), Not(Contains("--model=")));
  EXPECT_THAT(*OfferedByZsh({"info", "--tls-ca="}), ElementsAre("FILES"));
  EXPECT_THAT(*OfferedByZsh({"completion", ""}), Contains("fish:"));
}

TEST(FishCompletion, OffersCommandsAndFlags) {
  const std::string script = RunCommand(SomeCommands(), {"completion", "fish"}).out;
  const auto offered = [&script](const std::string& line) {
    return LinesOf("fish", script + "complete -C '" + line + "'\n");
  };
  const auto firsts = offered("gdnctl ");
  if (!firsts.has_value()) GTEST_SKIP() << "no fish here";
  EXPECT_THAT(*firsts, AllOf(Contains(HasSubstr("info\tShow the server")), Contains(HasSubstr("help\t"))));
  EXPECT_THAT(*offered("gdnctl sessions c"), ElementsAre(HasSubstr("create\tCreate a session")));
  EXPECT_THAT(*offered("gdnctl top --o"), ElementsAre(HasSubstr("--once")));
  EXPECT_THAT(*offered("gdnctl sessions list --mod"), ElementsAre());
  EXPECT_THAT(*offered("gdnctl info --targ"), ElementsAre(HasSubstr("--target")));
}

}  // namespace
}  // namespace gdn::completion_test
