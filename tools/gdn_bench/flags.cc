#include "tools/gdn_bench/flags.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

ABSL_FLAG(std::string, json, "",
          "write the results as JSON to this file; without a value or as '-': to stdout, the table to stderr");
ABSL_FLAG(std::string, backend, "cpu", "kernel: the backend to time: cpu, or gpu");
ABSL_FLAG(int, gpu_device, 0, "kernel: which GPU, counted among those that HIP_VISIBLE_DEVICES leaves");
ABSL_FLAG(int, threads, 0, "kernel: worker threads of the CPU; 0: one for each processor this process may run on");
ABSL_FLAG(std::string, filter, "", "kernel: only cases whose name holds a match of this regular expression");
ABSL_FLAG(bool, list, false, "kernel: print the names of the cases and exit");
ABSL_FLAG(int, repeat, 15,
          "kernel, state: rounds of a case, each beside its limits or measure; medians are over rounds");
ABSL_FLAG(double, min_time, 0.05, "kernel: seconds that a case runs in a round, at the least");
ABSL_FLAG(int, sessions, 8, "rpc: sessions in a Decode call (B)");
ABSL_FLAG(int, tokens, 1, "rpc: tokens of each session in a call (T)");
ABSL_FLAG(int, hidden, 2048, "rpc: hidden size (D)");
ABSL_FLAG(std::string, dtype, "BF16", "rpc: element type of the tensors: F32, F16 or BF16");
ABSL_FLAG(int, calls, 4000, "rpc: calls to each server at each concurrency");
ABSL_FLAG(std::string, concurrency, "1,4", "rpc: numbers of workers with a connection each, separated by commas");
ABSL_FLAG(bool, request_ids, false, "rpc: send a new request_id with each call, as a client that retries does");
ABSL_FLAG(double, time_limit, 60, "rpc: seconds for each concurrency; then the calls made so far are reported");
ABSL_FLAG(double, seconds, 60, "schedule: simulated seconds of each case");
ABSL_FLAG(uint64_t, seed, 1, "schedule: seed of the random arrivals");
ABSL_FLAG(int, layers, 36, "state: layers of the session that is moved, with a state of 2 MiB each");
ABSL_FLAG(int, forks, 200, "state: forks of each shape");
ABSL_FLAG(int, pause_phases, 20, "state: phases of a neighbour's calls with checkpoints, and as many without");
ABSL_FLAG(int, pause_calls, 200, "state: the neighbour's Decode calls in a phase");
ABSL_FLAG(std::string, folder, "", "state: folder on the disk to measure; default: the system's for temporary files");
ABSL_FLAG(bool, quick, false,
          "state: a small session and few rounds, to see that everything works; figures mean little");
ABSL_FLAG(std::string, server, "", "rpc, state: path of gdn_server; default: the one beside this program");
ABSL_FLAG(std::string, port_file, "", "echo_server: file to write the port to");

namespace gdn::bench {
namespace {

constexpr char kUsage[] =
    "measures Gated DeltaNet kernels and the service around them, as ratios to limits taken in the same run.\n\n"
    "  gdn_bench kernel [--backend=gpu] [--filter=REGEX] [--json[=FILE]]\n"
    "                                                      operators and layers against memory bandwidth and "
    "multiply-add peak\n"
    "  gdn_bench rpc [--sessions=B] [--json[=FILE]]        Decode of gdn_server with a null backend against an echo "
    "service\n"
    "  gdn_bench schedule [--seconds=S] [--json[=FILE]]    the scheduler under 10,000 sessions, in simulated time\n"
    "  gdn_bench state [--layers=N] [--folder=DIR] [--json[=FILE]]  transfers, moves, forks and checkpoints of "
    "sessions\n"
    "                                                      against plain copies of the same bytes\n"
    "  gdn_bench echo_server --port_file=FILE              the plain servers of both, alone\n\n"
    "docs/benchmarks.md says what is measured and how to read it.";

absl::StatusOr<std::string> SelfPath() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot find this program's path: ", error.message()));
  return path.string();
}

absl::StatusOr<std::vector<int>> ParseNumbers(const std::string& text) {
  std::vector<int> numbers;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int number = 0;
    if (!absl::SimpleAtoi(part, &number)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--concurrency='", text, "' is not a list of numbers such as 1,4"));
    }
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

std::vector<std::string> NormalizeArguments(const std::vector<std::string>& arguments) {
  std::vector<std::string> normal;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!absl::StartsWith(argument, "--") || argument.size() == 2) {
      normal.push_back(argument);
      continue;
    }
    const size_t name_end = std::min(argument.find('='), argument.size());
    std::string name = argument.substr(2, name_end - 2);
    absl::StrReplaceAll({{"-", "_"}}, &name);
    const bool last = i + 1 == arguments.size() || absl::StartsWith(arguments[i + 1], "--");
    const bool bare_json = name == "json" && name_end == argument.size() && last;
    normal.push_back(absl::StrCat("--", name, bare_json ? "=-" : argument.substr(name_end)));
  }
  return normal;
}

absl::StatusOr<CommandLine> ParseCommandLine(int argc, char** argv) {
  absl::SetProgramUsageMessage(kUsage);
  absl::FlagsUsageConfig config;
  config.contains_help_flags = [](absl::string_view file) { return absl::StrContains(file, "gdn_bench/"); };
  config.contains_helpshort_flags = config.contains_help_flags;
  absl::SetFlagsUsageConfig(config);
  std::vector<std::string> arguments = NormalizeArguments({argv, argv + argc});
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  const std::vector<char*> rest = absl::ParseCommandLine(static_cast<int>(pointers.size()), pointers.data());

  CommandLine line;
  if (rest.size() != 2)
    return absl::InvalidArgumentError(
        "expected one command: gdn_bench kernel | rpc | schedule | state; --help shows the flags");
  line.command = rest[1];
  absl::StrReplaceAll({{"-", "_"}}, &line.command);
  const std::set<std::string> commands = {"kernel", "rpc", "schedule", "state", "echo_server"};
  if (commands.count(line.command) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown command '", rest[1], "'; expected kernel, rpc, schedule or state"));
  }
  line.json = absl::GetFlag(FLAGS_json);
  line.list = absl::GetFlag(FLAGS_list);
  line.port_file = absl::GetFlag(FLAGS_port_file);
  if (line.command == "echo_server" && line.port_file.empty()) {
    return absl::InvalidArgumentError("echo_server needs --port_file=FILE");
  }
  line.kernel = {.backend = absl::GetFlag(FLAGS_backend),
                 .threads = absl::GetFlag(FLAGS_threads),
                 .gpu_device = absl::GetFlag(FLAGS_gpu_device),
                 .filter = absl::GetFlag(FLAGS_filter),
                 .measure = {.repeat = absl::GetFlag(FLAGS_repeat), .min_time_s = absl::GetFlag(FLAGS_min_time)}};
  line.rpc.sessions = absl::GetFlag(FLAGS_sessions);
  line.rpc.tokens = absl::GetFlag(FLAGS_tokens);
  line.rpc.hidden = absl::GetFlag(FLAGS_hidden);
  GDN_ASSIGN_OR_RETURN(line.rpc.dtype, ParseDType(absl::GetFlag(FLAGS_dtype)));
  line.rpc.calls = absl::GetFlag(FLAGS_calls);
  GDN_ASSIGN_OR_RETURN(line.rpc.concurrency, ParseNumbers(absl::GetFlag(FLAGS_concurrency)));
  line.rpc.request_ids = absl::GetFlag(FLAGS_request_ids);
  line.rpc.time_limit_s = absl::GetFlag(FLAGS_time_limit);
  GDN_ASSIGN_OR_RETURN(line.rpc.self, SelfPath());
  line.rpc.server = absl::GetFlag(FLAGS_server);
  if (line.rpc.server.empty())
    line.rpc.server = (std::filesystem::path(line.rpc.self).parent_path() / "gdn_server").string();
  line.schedule = {.seconds = absl::GetFlag(FLAGS_seconds), .seed = absl::GetFlag(FLAGS_seed)};
  if (!(line.schedule.seconds >= 0.1 && line.schedule.seconds <= 3600)) {
    return absl::InvalidArgumentError(absl::StrCat("--seconds is ", line.schedule.seconds, ", expected 0.1 .. 3600"));
  }
  line.state = {.layers = absl::GetFlag(FLAGS_layers),
                .repeat = absl::GetFlag(FLAGS_repeat),
                .forks = absl::GetFlag(FLAGS_forks),
                .pause_phases = absl::GetFlag(FLAGS_pause_phases),
                .pause_calls = absl::GetFlag(FLAGS_pause_calls),
                .folder = absl::GetFlag(FLAGS_folder),
                .server = line.rpc.server,
                .self = line.rpc.self};
  if (absl::GetFlag(FLAGS_quick)) {
    line.state.layers = 2;
    line.state.repeat = 2;
    line.state.forks = 3;
    line.state.pause_phases = 1;
    line.state.pause_calls = 5;
  }
  return line;
}

}  // namespace gdn::bench
