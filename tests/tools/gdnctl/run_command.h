// Runs a gdnctl command line in this process.
//
// Thread safety: for one thread. The flags that it sets stay set.
//
//   const Outcome outcome = RunCommand(InfoCommands(), {"info", "--target=" + server.target()});
#pragma once

#include <cstdio>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/gdnctl/command.h"

namespace gdn {

struct Outcome {
  int exit_code = -1;
  std::string out, err;

  friend void PrintTo(const Outcome& outcome, std::ostream* to) {
    *to << "exit code " << outcome.exit_code << ", output '" << outcome.out << "', errors '" << outcome.err << "'";
  }
};

// Matches an Outcome; if it does not, the test prints what the command wrote.
MATCHER_P(ExitsWith, exit_code, "") { return arg.exit_code == exit_code; }

inline Outcome RunCommand(const std::vector<Command>& commands, const std::vector<std::string>& arguments) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int exit_code = RunCommandLine(commands, arguments);
  std::fflush(stdout);
  return {exit_code, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr()};
}

}  // namespace gdn
