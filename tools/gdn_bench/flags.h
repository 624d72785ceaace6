// The command line of gdn_bench: a command, then flags.
//
// Thread safety: call once, from main.
//
//   GDN_ASSIGN_OR_RETURN(CommandLine line, ParseCommandLine(argc, argv));
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/gdn_bench/kernels/kernel_bench.h"
#include "tools/gdn_bench/math_drift_bench.h"
#include "tools/gdn_bench/schedule/schedule_bench.h"
#include "tools/gdn_bench/serve/serve_bench.h"
#include "tools/gdn_bench/states/prefix_bench.h"
#include "tools/gdn_bench/states/state_bench.h"

namespace gdn::bench {

struct CommandLine {
  std::string help;  // the text of --help, to be printed and nothing else done; "": --help was not given
  // "kernel", "serve", "schedule", "state", "prefix", "drift", "echo_server", "wake_echo" or "neighbour"
  std::string command;
  KernelBenchOptions kernel;
  ScheduleBenchOptions schedule;
  MathDriftOptions drift;
  ServeOptions serve;
  StateBenchOptions state;
  PrefixBenchOptions prefix;
  bool version = false;  // --version was given; all other fields are then unset
  bool list = false;
  std::string json;    // path; "-": stdout; "": none
  std::string listen;  // `listen` and `port_file` are for echo_server
  std::string port_file;
  std::vector<int> wake_fds;  // for wake_echo: two
  int queue_threads = 0;      // for echo_server: threads that poll completion queues; 0: it is on the callback API
};

// Returns the arguments with dashes in flag names replaced by underscores (--min-time becomes --min_time), and --json
// without a value replaced by --json=-.
std::vector<std::string> NormalizeArguments(const std::vector<std::string>& arguments);

// Reads the command and its flags. INVALID_ARGUMENT for a missing or unknown command or flag and for a bad value; the
// message says what to do.
absl::StatusOr<CommandLine> ParseCommandLine(int argc, char** argv);

}  // namespace gdn::bench
