// The bash completion that gdnctl prints, in a real bash.
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/gdnctl/run_command.h"
#include "tools/gdnctl/commands.h"

namespace gdn {
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

// What bash offers where `words` stand on the line, the last of them unfinished.
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
  EXPECT_THAT(Offered({"completion", ""}), ElementsAre("bash"));
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

TEST(BashCompletion, IsForBash) {
  const Outcome outcome = RunCommand(SomeCommands(), {"completion", "fish"});
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("gdnctl completion bash"));
}

}  // namespace
}  // namespace gdn
