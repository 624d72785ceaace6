// gdn_bench: see --help and docs/evidence/benchmarks.md.
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/error.h"
#include "base/files/output_file.h"
#include "base/standard_streams.h"
#include "base/status_macros.h"
#include "base/version/version.h"
#include "tools/gdn_bench/drift_bench.h"
#include "tools/gdn_bench/flags.h"
#include "tools/gdn_bench/kernels/kernel_bench.h"
#include "tools/gdn_bench/math_drift_bench.h"
#include "tools/gdn_bench/report.h"
#include "tools/gdn_bench/schedule/schedule_bench.h"
#include "tools/gdn_bench/serve/echo_server.h"
#include "tools/gdn_bench/serve/queue_echo.h"
#include "tools/gdn_bench/serve/serve_bench.h"
#include "tools/gdn_bench/serve/serve_neighbour.h"
#include "tools/gdn_bench/serve/serve_report.h"
#include "tools/gdn_bench/serve/wake_echo.h"
#include "tools/gdn_bench/states/prefix_bench.h"
#include "tools/gdn_bench/states/state_bench.h"

namespace gdn::bench {
namespace {

// Where the results go. The file of --json is opened before anything is measured.
struct Results {
  std::string json;                // as the flag says
  std::optional<OutputFile> file;  // none: there is no --json, or it is stdout
};

absl::Status Publish(const std::string& table, const nlohmann::ordered_json& json, Results& to) {
  std::fputs(table.c_str(), to.json == "-" ? stderr : stdout);
  return to.json.empty() ? absl::OkStatus() : WriteJson(json, to.file.has_value() ? &*to.file : nullptr);
}

absl::Status Run(const CommandLine& line) {
  if (line.command == "echo_server" && line.queue_threads > 0) {
    return RunQueueEchoServer(line.listen, line.port_file, line.queue_threads);
  }
  if (line.command == "wake_echo") return RunWakeEcho(line.wake_fds[0], line.wake_fds[1]);
  if (line.command == "echo_server") return RunEchoServer(line.listen, line.port_file, line.serve.secure);
  if (line.command == "neighbour") {
    const Workload& load = line.serve.load;
    return RunNeighbour(line.listen, line.port_file,
                        {.tokens = line.serve.beside_tokens,
                         .hidden = load.hidden,
                         .dtype = load.dtype,
                         .time_limit = absl::Seconds(line.serve.time_limit_s)});
  }
  Results results{.json = line.json, .file = {}};
  if (!line.json.empty() && line.json != "-") {
    absl::StatusOr<OutputFile> file = OutputFile::Create(line.json);
    if (!file.ok()) return WithPrefix(file.status(), "--json");
    results.file.emplace(*std::move(file));
  }
  if (line.command == "serve") {
    GDN_ASSIGN_OR_RETURN(const ServeReport report, RunServeBench(line.serve));
    return Publish(ServeTable(report), ServeJson(report), results);
  }
  if (line.command == "schedule") {
    const std::vector<ScheduleCase> cases = RunScheduleBench(line.schedule);
    return Publish(ScheduleTable(cases), ScheduleJson(cases), results);
  }
  if (line.command == "drift" && line.drift.math != ProductMath::kExact) {
    GDN_ASSIGN_OR_RETURN(const std::vector<MathDriftRow> rows, RunMathDriftBench(line.drift));
    return Publish(MathDriftTable(rows), MathDriftJson(rows), results);
  }
  if (line.command == "drift") {
    GDN_ASSIGN_OR_RETURN(const std::vector<DriftRow> rows, RunDriftBench(line.drift));
    return Publish(DriftTable(rows), DriftJson(rows), results);
  }
  if (line.command == "state") {
    GDN_ASSIGN_OR_RETURN(const StateReport report, RunStateBench(line.state));
    return Publish(StateTable(report), StateJson(report), results);
  }
  if (line.command == "prefix") {
    GDN_ASSIGN_OR_RETURN(const PrefixReport report, RunPrefixBench(line.prefix));
    return Publish(PrefixTable(report), PrefixJson(report), results);
  }
  if (line.list) {
    GDN_ASSIGN_OR_RETURN(const auto names, KernelCaseNames(line.kernel));
    for (const std::string& name : names) std::printf("%s\n", name.c_str());
    return absl::OkStatus();
  }
  GDN_ASSIGN_OR_RETURN(const KernelReport report, RunKernelBench(line.kernel));
  return Publish(KernelTable(report), KernelJson(report), results);
}

int Main(int argc, char** argv) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine(argc, argv);
  if (!line.ok()) {
    std::fprintf(stderr, "gdn_bench: %s\nRun gdn_bench --help for the commands and flags.\n",
                 std::string(line.status().message()).c_str());
    return 2;
  }
  if (line->version) {
    std::fputs(VersionText("gdn_bench").c_str(), stdout);
    return 0;
  }
  if (!line->help.empty()) {
    std::fputs(line->help.c_str(), stdout);
    return 0;
  }
  const absl::Status status = Run(*line);
  if (!status.ok()) {
    std::fprintf(stderr, "gdn_bench: %s: %s\n", absl::StatusCodeToString(status.code()).c_str(),
                 std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace gdn::bench

int main(int argc, char** argv) {
  gdn::OpenStandardStreams();
  return gdn::bench::Main(argc, argv);
}
