// The command line of gdn_bench: a command, then flags.
//
// Thread safety: call once, from main.
//
//   GDN_ASSIGN_OR_RETURN(CommandLine line, ParseCommandLine(argc, argv));
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/gdn_bench/drift_bench.h"
#include "tools/gdn_bench/kernel_bench.h"
#include "tools/gdn_bench/prefix_bench.h"
#include "tools/gdn_bench/schedule_bench.h"
#include "tools/gdn_bench/serve_bench.h"
#include "tools/gdn_bench/state_bench.h"

namespace gdn::bench {

struct CommandLine {
  std::string help;     // the text of --help, which then is all that is to be done; "": it was not asked for
  std::string command;  // "kernel", "serve", "schedule", "state", "prefix", "drift" or "echo_server"
  KernelBenchOptions kernel;
  ScheduleBenchOptions schedule;
  DriftOptions drift;
  ServeOptions serve;
  StateBenchOptions state;
  PrefixBenchOptions prefix;
  bool version = false;  // --version: nothing else is read then
  bool list = false;
  std::string json;    // path; "-": stdout; "": none
  std::string listen;  // these two: of echo_server
  std::string port_file;
};

// The arguments with dashes in flag names made underscores (--min-time is --min_time), and a --json without a value
// made --json=-.
std::vector<std::string> NormalizeArguments(const std::vector<std::string>& arguments);

// INVALID_ARGUMENT, saying what to do, for a missing or unknown command or flag and for a bad value.
absl::StatusOr<CommandLine> ParseCommandLine(int argc, char** argv);

}  // namespace gdn::bench
