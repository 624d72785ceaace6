#include "tools/gdn_bench/flags.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/net/host_port.h"
#include "base/status_macros.h"
#include "tools/common/tool_flags.h"

ABSL_FLAG(std::string, json, "",
          "file to write the results to as JSON; without a value, or with '-': stdout, and the table goes to stderr");
ABSL_FLAG(std::string, backend, "",
          "kernel: backend to time: cpu (default) or gpu; serve: backend of gdn_server: null (default), cpu, gpu "
          "(default for --suite=goals, step and devices) or auto");
ABSL_FLAG(std::string, gpu_graphs, "auto",
          "kernel: replay of repeated decode steps on the GPU, as in gdn_server: auto, on or off");
ABSL_FLAG(std::string, matrix_units, "auto",
          "kernel: whether products run on the GPU's matrix units, as in gdn_server: auto or off");
ABSL_FLAG(int, gpu_device, 0,
          "kernel, serve, drift: number of the GPU, counted among those that HIP_VISIBLE_DEVICES leaves");
ABSL_FLAG(std::string, secure, "",
          "serve --suite=secure, echo_server: folder with certificates and tokens as docs/how-to/secure.md makes them");
ABSL_FLAG(std::string, gpu_devices, "",
          "serve --suite=devices: GPUs of the server to compare with one on --gpu-device alone, such as 0,1");
ABSL_FLAG(int, threads, 0,
          "kernel, serve: worker threads of the CPU; 0: one for each processor this process may run on");
ABSL_FLAG(
    std::string, simd, "",
    "kernel: instruction set of the CPU's operators, limits and oneDNN, such as avx3 or avx2; default: the best one");
ABSL_FLAG(std::string, filter, "", "kernel: run only cases whose name matches this regular expression");
ABSL_FLAG(bool, list, false, "kernel: print the names of the cases and exit");
ABSL_FLAG(int, repeat, 15,
          "kernel, state: rounds of each case, with its limits measured in each round; medians are over rounds");
ABSL_FLAG(double, min_time, 0.05, "kernel: shortest time of a case in a round, in seconds");
ABSL_FLAG(std::string, suite, "",
          "serve: run a suite of loads with goals instead of one load: host (the service alone), goals (the service "
          "against a GPU's kernels, and all of step), step (a Step against separate calls), devices (several GPUs "
          "against one)");
ABSL_FLAG(std::string, call, "decode", "serve: decode or prefill");
ABSL_FLAG(std::string, api, "unary", "serve: unary or stream");
ABSL_FLAG(std::string, transport, "tcp", "serve: tcp (loopback) or unix (a socket)");
ABSL_FLAG(bool, shared_memory, false,
          "serve: also measure with tensors in shared memory and messages on a Unix socket");
ABSL_FLAG(bool, ring, false, "serve: also measure through rings; suites do so by themselves");
ABSL_FLAG(
    int32_t, ring_spin_us, 50,
    "serve: how long a ring's client and server look for each other before they sleep, in microseconds; 0: not at all");
ABSL_FLAG(
    std::string, echo, "typed",
    "serve: the echo services to compare with: typed, raw, both, or queue (raw, and the same on completion queues)");
ABSL_FLAG(int, sessions, 8, "serve: sessions in a Decode call (B)");
ABSL_FLAG(int, tokens, 1, "serve: tokens of each session in a call (T)");
ABSL_FLAG(int, hidden, 2048, "serve: hidden size (D)");
ABSL_FLAG(int, model_layers, 0, "serve: layers of the model, which calls use in turn; 0: 1 for --backend=null, else 4");
ABSL_FLAG(std::string, dtype, "BF16", "serve: element type of the tensors: F32, F16 or BF16");
ABSL_FLAG(int, calls, 4000, "serve: calls to each server, for each load");
ABSL_FLAG(std::string, concurrency, "1,4", "serve: numbers of clients with a connection each, separated by commas");
ABSL_FLAG(bool, request_ids, false, "serve: send a new request_id with each call, like a client that retries");
ABSL_FLAG(double, rate, 0,
          "serve: calls a second of all clients, sent when they are due (an open loop); 0: each client sends its next "
          "call after the reply");
ABSL_FLAG(std::string, arrivals, "poisson", "serve: when the calls of --rate are due: poisson or even");
ABSL_FLAG(int, in_flight, 64, "serve: with --rate, calls that may wait for a reply at once");
ABSL_FLAG(std::string, beside, "",
          "serve: prefill:TOKENS: also measure while another session runs StreamPrefills of this many tokens");
ABSL_FLAG(double, time_limit, 20,
          "serve: longest time of each load in seconds; the calls made by then are reported. neighbour: of what is in "
          "flight at its end");
ABSL_FLAG(double, seconds, 60, "schedule: simulated seconds of each case");
ABSL_FLAG(uint64_t, seed, 1, "schedule, drift: seed of the random arrivals and inputs");
ABSL_FLAG(std::string, math, "exact",
          "kernel: how layers multiply: exact, int8, or on a GPU half; not exact: only whole layers. drift: exact, for "
          "states "
          "of float32 and bfloat16; or int8 (on the CPU) or half (on a GPU), for a layer in such products against "
          "exact ones");
ABSL_FLAG(int64_t, drift_tokens, 100'000, "drift: tokens to decode, 1 .. 100,000,000");
ABSL_FLAG(int, layers, 36, "state: layers of the session that is moved; each has a state of 2 MiB");
ABSL_FLAG(int, forks, 200, "state: forks of each shape");
ABSL_FLAG(int, pause_phases, 20, "state: phases of another session's calls with checkpoints, and as many without");
ABSL_FLAG(int, pause_calls, 200, "state: Decode calls of the other session in a phase");
ABSL_FLAG(int, prefix_tokens, 8192, "prefix: tokens of the prompt's prefix, a multiple of 512");
ABSL_FLAG(int, prefix_layers, 2, "prefix: layers of the model");
ABSL_FLAG(int, prefix_rounds, 5, "prefix: rounds with a stored prefix, and as many without");
ABSL_FLAG(std::string, folder, "", "state: folder on the disk to measure; default: the system's for temporary files");
ABSL_FLAG(bool, quick, false,
          "state: use a small session and few rounds, to check that everything works; the figures mean little");
ABSL_FLAG(std::string, server, "", "serve, state, prefix: path of gdn_server; default: the one beside this program");
ABSL_FLAG(std::string, listen, "127.0.0.1:0", "echo_server, neighbour: HOST:PORT or unix:PATH");
ABSL_FLAG(std::string, port_file, "", "echo_server: file to write the port to; neighbour: to write at the first reply");
ABSL_FLAG(int, queue_threads, 0,
          "echo_server: serve bytes on completion queues, polled by this many threads; 0: serve on the callback API");

ABSL_FLAG(std::string, state_dtype, "float32", "kernel: dtype of the base states: float32 or bf16");

ABSL_FLAG(bool, apart, false, "serve: run the clients on one processor and the servers on the others");
ABSL_FLAG(std::string, wake_fds, "", "wake_echo: the inherited eventfds that it reads and writes, as in 5,6");

namespace gdn::bench {
namespace {

constexpr char kUsage[] =
    "measures Gated DeltaNet kernels and the service around them, as ratios to limits taken in the same run.\n\n"
    "  gdn_bench kernel [--backend=gpu] [--filter=REGEX] [--json[=FILE]]\n"
    "                                                      operators and layers against memory bandwidth and "
    "multiply-add peak\n"
    "  gdn_bench serve [--suite=host|goals|step|devices|secure] [--json[=FILE]]  calls of gdn_server against an echo "
    "service and "
    "the "
    "kernels alone\n"
    "  gdn_bench schedule [--seconds=S] [--json[=FILE]]    the scheduler under 10,000 sessions, in simulated time\n"
    "  gdn_bench state [--layers=N] [--folder=DIR] [--json[=FILE]]  transfers, moves, forks and checkpoints of "
    "sessions\n"
    "                                                      against plain copies of the same bytes\n"
    "  gdn_bench prefix [--prefix-tokens=N] [--json[=FILE]]  time to the first output of a prompt with a stored "
    "prefix,\n"
    "                                                      and of a prompt without one\n"
    "  gdn_bench drift [--drift-tokens=N] [--json[=FILE]]  the error of long decodes with states of float32 and "
    "bfloat16,\n"
    "                                                      or with --math=int8 or half\n"
    "  gdn_bench echo_server --port_file=FILE              only the echo servers that `serve` compares with\n"
    "  gdn_bench wake_echo --wake_fds=FD,FD                the other process of its echo of wake-ups\n"
    "  gdn_bench neighbour --listen=TARGET --port_file=FILE --beside=prefill:TOKENS\n"
    "                                                      the other client of `serve --beside`\n\n"
    "docs/evidence/benchmarks.md says what is measured and how to read it.";

absl::StatusOr<std::string> SelfPath() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot find this program's path: ", error.message()));
  return path.string();
}

absl::StatusOr<std::vector<int>> ParseNumbers(const char* flag, const std::string& text) {
  std::vector<int> numbers;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int number = 0;
    if (!absl::SimpleAtoi(part, &number)) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, "='", text, "' is not a list of numbers such as 1,4"));
    }
    numbers.push_back(number);
  }
  return numbers;
}

// The value of the one whose name is given.
template <typename T>
absl::StatusOr<T> ParseName(const char* flag, const std::string& text,
                            const std::vector<std::pair<const char*, T>>& all) {
  std::vector<std::string> names;
  for (const auto& [name, value] : all) {
    if (text == name) return value;
    names.push_back(name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "='", text, "' is not known; expected one of ", absl::StrJoin(names, ", ")));
}

// "prefill:32768".
absl::StatusOr<int> ParseBeside(const std::string& text) {
  int tokens = 0;
  absl::string_view rest = text;
  if (text.empty() || (absl::ConsumePrefix(&rest, "prefill:") && absl::SimpleAtoi(rest, &tokens) && tokens > 0)) {
    return tokens;
  }
  return absl::InvalidArgumentError(absl::StrCat("--beside='", text, "' is not a load such as prefill:32768"));
}

absl::StatusOr<Workload> WorkloadOfFlags(const std::string& backend) {
  Workload load;
  GDN_ASSIGN_OR_RETURN(load.call,
                       ParseName<CallKind>("call", absl::GetFlag(FLAGS_call),
                                           {{"decode", CallKind::kDecode}, {"prefill", CallKind::kPrefill}}));
  GDN_ASSIGN_OR_RETURN(
      load.api, ParseName<Api>("api", absl::GetFlag(FLAGS_api), {{"unary", Api::kUnary}, {"stream", Api::kStream}}));
  load.sessions = absl::GetFlag(FLAGS_sessions);
  load.tokens = absl::GetFlag(FLAGS_tokens);
  load.hidden = absl::GetFlag(FLAGS_hidden);
  GDN_ASSIGN_OR_RETURN(load.dtype, ParseDType(absl::GetFlag(FLAGS_dtype)));
  load.request_ids = absl::GetFlag(FLAGS_request_ids);
  load.layers = absl::GetFlag(FLAGS_model_layers);
  if (load.layers == 0) load.layers = backend == "null" ? 1 : 4;  // a GPU's cache holds one, not four
  return load;
}

absl::StatusOr<ServeOptions> ServeOptionsOfFlags() {
  ServeOptions o;
  o.suite = absl::GetFlag(FLAGS_suite);
  o.backend = absl::GetFlag(FLAGS_backend);
  if (o.backend.empty()) {
    o.backend = o.suite == "goals" || o.suite == "step" || o.suite == "devices" ? "gpu" : "null";
  }
  GDN_ASSIGN_OR_RETURN(o.load, WorkloadOfFlags(o.backend));
  GDN_ASSIGN_OR_RETURN(o.transport, ParseName<Transport>("transport", absl::GetFlag(FLAGS_transport),
                                                         {{"tcp", Transport::kTcp}, {"unix", Transport::kUnix}}));
  GDN_ASSIGN_OR_RETURN(o.arrivals, ParseName<Arrivals>("arrivals", absl::GetFlag(FLAGS_arrivals),
                                                       {{"poisson", Arrivals::kPoisson}, {"even", Arrivals::kEven}}));
  const std::vector<std::pair<const char*, std::tuple<bool, bool, bool>>> echoes = {{"typed", {true, false, false}},
                                                                                    {"raw", {false, true, false}},
                                                                                    {"both", {true, true, false}},
                                                                                    {"queue", {false, true, true}}};
  const std::string echo = o.suite.empty() ? absl::GetFlag(FLAGS_echo) : "both";
  GDN_ASSIGN_OR_RETURN(std::tie(o.echo, o.raw_echo, o.queue_echo), ParseName("echo", echo, echoes));
  GDN_ASSIGN_OR_RETURN(o.concurrency, ParseNumbers("concurrency", absl::GetFlag(FLAGS_concurrency)));
  GDN_ASSIGN_OR_RETURN(o.beside_tokens, ParseBeside(absl::GetFlag(FLAGS_beside)));
  o.shared_memory = absl::GetFlag(FLAGS_shared_memory);
  o.ring = absl::GetFlag(FLAGS_ring);
  o.apart = absl::GetFlag(FLAGS_apart);
  o.load.ring_spin_us = absl::GetFlag(FLAGS_ring_spin_us);
  o.rate = absl::GetFlag(FLAGS_rate);
  o.in_flight = absl::GetFlag(FLAGS_in_flight);
  o.calls = absl::GetFlag(FLAGS_calls);
  o.time_limit_s = absl::GetFlag(FLAGS_time_limit);
  o.gpu_device = absl::GetFlag(FLAGS_gpu_device);
  o.gpu_devices = absl::GetFlag(FLAGS_gpu_devices);
  o.secure = absl::GetFlag(FLAGS_secure);
  o.threads = absl::GetFlag(FLAGS_threads);
  GDN_ASSIGN_OR_RETURN(o.self, SelfPath());
  o.server = absl::GetFlag(FLAGS_server);
  if (o.server.empty()) o.server = (std::filesystem::path(o.self).parent_path() / "gdn_server").string();
  return o;
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
  const auto ours = [](const absl::CommandLineFlag& flag) { return absl::StrContains(flag.Filename(), "gdn_bench/"); };
  GDN_ASSIGN_OR_RETURN(const CommandFlags flags, SetFlags(NormalizeArguments({argv + 1, argv + argc}), ours));

  CommandLine line;
  if (flags.help) {
    line.help = absl::StrCat("gdn_bench ", kUsage, "\n\nFlags:\n", FlagsHelp(ours));
    return line;
  }
  line.version = flags.version;
  if (line.version) return line;
  if (flags.positional.size() != 1)
    return absl::InvalidArgumentError(
        "expected one command: gdn_bench kernel | serve | schedule | state | prefix | drift; --help shows the flags");
  line.command = flags.positional[0];
  absl::StrReplaceAll({{"-", "_"}}, &line.command);
  const std::set<std::string> commands = {"kernel", "serve",       "schedule",  "state",    "prefix",
                                          "drift",  "echo_server", "wake_echo", "neighbour"};
  if (commands.count(line.command) == 0) {
    const std::string nearest = NearestName(line.command, {commands.begin(), commands.end()});
    return absl::InvalidArgumentError(absl::StrCat("unknown command '", flags.positional[0], "'; ",
                                                   nearest.empty()
                                                       ? "expected kernel, serve, schedule, state, prefix or drift"
                                                       : absl::StrCat("did you mean '", nearest, "'?")));
  }
  line.json = absl::GetFlag(FLAGS_json);
  line.list = absl::GetFlag(FLAGS_list);
  line.listen = absl::GetFlag(FLAGS_listen);
  line.port_file = absl::GetFlag(FLAGS_port_file);
  if (line.command == "echo_server" && line.port_file.empty()) {
    return absl::InvalidArgumentError("echo_server needs --port-file=FILE");
  }
  if (line.command == "wake_echo") {
    GDN_ASSIGN_OR_RETURN(line.wake_fds, ParseNumbers("wake_fds", absl::GetFlag(FLAGS_wake_fds)));
    if (line.wake_fds.size() != 2) return absl::InvalidArgumentError("wake_echo needs --wake-fds=FD,FD");
  }
  line.queue_threads = absl::GetFlag(FLAGS_queue_threads);
  GDN_RETURN_IF_ERROR(CheckRange("queue_threads", line.queue_threads, 0, 1024));
  if (!absl::StartsWith(line.listen, "unix:")) {
    if (const absl::Status address = CheckHostPort(line.listen); !address.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--listen ", address.message()));
    }
  }
  const std::string backend = absl::GetFlag(FLAGS_backend);
  line.kernel = {.backend = backend.empty() ? "cpu" : backend,
                 .threads = absl::GetFlag(FLAGS_threads),
                 .simd = absl::GetFlag(FLAGS_simd),
                 .gpu_device = absl::GetFlag(FLAGS_gpu_device),
                 .gpu_graphs = absl::GetFlag(FLAGS_gpu_graphs),
                 .matrix_units = absl::GetFlag(FLAGS_matrix_units),
                 .filter = absl::GetFlag(FLAGS_filter),
                 .measure = {.repeat = absl::GetFlag(FLAGS_repeat), .min_time_s = absl::GetFlag(FLAGS_min_time)}};
  if (const std::string dtype = absl::GetFlag(FLAGS_state_dtype); dtype == "bf16") {
    line.kernel.state_dtype = DType::kBF16;
  } else if (dtype != "float32") {
    return absl::InvalidArgumentError(absl::StrCat("--state-dtype is '", dtype, "', expected float32 or bf16"));
  }
  GDN_ASSIGN_OR_RETURN(line.serve, ServeOptionsOfFlags());
  if (line.command == "neighbour" && (line.port_file.empty() || line.serve.beside_tokens == 0)) {
    return absl::InvalidArgumentError("neighbour needs --listen=TARGET, --port-file=FILE and --beside=prefill:TOKENS");
  }
  line.schedule = {.seconds = absl::GetFlag(FLAGS_seconds), .seed = absl::GetFlag(FLAGS_seed)};
  if (!(line.schedule.seconds >= 0.1 && line.schedule.seconds <= 3600)) {
    return absl::InvalidArgumentError(absl::StrCat("--seconds is ", line.schedule.seconds, ", expected 0.1 .. 3600"));
  }
  const std::string math_name = absl::GetFlag(FLAGS_math);
  const std::optional<ProductMath> math = ParseProductMath(math_name);
  if (!math.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("--math is '", math_name, "', expected exact, int8 or half"));
  }
  line.drift = {{.tokens = absl::GetFlag(FLAGS_drift_tokens), .seed = absl::GetFlag(FLAGS_seed)},
                *math,
                absl::GetFlag(FLAGS_gpu_device)};
  line.kernel.math = *math;
  if (line.drift.tokens < 1 || line.drift.tokens > 100'000'000) {
    return absl::InvalidArgumentError(
        absl::StrCat("--drift-tokens is ", line.drift.tokens, ", expected 1 .. 100000000"));
  }
  line.state = {.layers = absl::GetFlag(FLAGS_layers),
                .repeat = absl::GetFlag(FLAGS_repeat),
                .forks = absl::GetFlag(FLAGS_forks),
                .pause_phases = absl::GetFlag(FLAGS_pause_phases),
                .pause_calls = absl::GetFlag(FLAGS_pause_calls),
                .folder = absl::GetFlag(FLAGS_folder),
                .server = line.serve.server,
                .self = line.serve.self};
  line.prefix = {.tokens = absl::GetFlag(FLAGS_prefix_tokens),
                 .layers = absl::GetFlag(FLAGS_prefix_layers),
                 .rounds = absl::GetFlag(FLAGS_prefix_rounds),
                 .backend = backend.empty() ? "cpu" : backend,
                 .threads = absl::GetFlag(FLAGS_threads),
                 .server = line.serve.server,
                 .self = line.serve.self};
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
