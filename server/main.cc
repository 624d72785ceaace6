// The program: flags, logging, the backend, signals, and a server from its start to its drain.

#include <pthread.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX's, for sets of signals
#include <unistd.h>

#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "absl/strings/str_join.h"
#include "base/error.h"
#include "base/files/output_file.h"
#include "base/server_process.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/version/version.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/null/null_backend.h"
#include "server/config/value_form.h"
#include "server/config_reload.h"
#include "server/gdn_server.h"
#include "server/options/read_options.h"
#include "server/process_end.h"
#include "server/service_manager.h"

namespace gdn {
namespace {

constexpr char kUsage[] =
    "Serves Gated DeltaNet layers over gRPC (gdn.v1.GdnService, with health and reflection).\n\n"
    "  gdn_server --model qwen=/models/Qwen3-Next-80B-A3B-Instruct --listen 0.0.0.0:50061 --tls-cert CRT --tls-key "
    "KEY\n"
    "  gdn_server --listen 127.0.0.1:0 --port-file /tmp/port        # no model: operator sessions only\n"
    "  gdn_server --listen 127.0.0.1:50061 --listen unix:/run/gdn/gdn.sock\n"
    "  gdn_server --model qwen=DIR --disk-dir /var/lib/gdn --checkpoint-every-tokens 256   # survives a crash\n\n"
    "On SIGTERM or SIGINT the server drains: it refuses new steps, finishes accepted ones, makes sessions durable "
    "(with --disk-dir or --redis), and exits with code 0. The code is 3 if an accepted call or a session's last "
    "checkpoint did not finish in time.";

void LogConfiguration(const ServerOptions& options, const BackendInfo& backend, const StateServiceOptions& states) {
  std::vector<std::string> models;
  for (const auto& [name, directory] : options.models) models.push_back(StrCat(name, "=", directory));
  spdlog::info("gdn_server {} backend={} device=\"{}\" numerics_id={} threads={}", ProductVersion(), backend.name,
               backend.device, NumericsIdFor(backend.numerics_id, states.state_dtype), backend.threads);
  spdlog::info(
      "config listen={} models=[{}] device_state_bytes={} host_state_bytes={} disk_dir={} redis={} "
      "checkpoint_every_tokens={} checkpoint_every={} max_draft={} max_batch={} max_message_bytes={} "
      "max_stored_reply_bytes={} stored_reply_bytes={} max_queued_steps={} shared_memory_dir={} shared_memory_bytes={} "
      "drain_timeout={} log_format={} log_level={}",
      absl::StrJoin(options.listen, ","), absl::StrJoin(models, ", "), states.device_bytes, states.host_bytes,
      states.disk.directory.empty() ? "none" : states.disk.directory, states.redis.endpoint.empty() ? "none" : "set",
      states.policy.every_tokens, TimeOrNever().print(states.policy.every), options.limits.max_draft,
      options.limits.max_batch, options.limits.max_message_bytes, options.limits.max_stored_reply_bytes,
      options.memory.stored_reply_bytes, options.engine.max_queued_steps,
      options.shared_memory.directory.empty() ? "none" : options.shared_memory.directory, options.shared_memory.bytes,
      absl::FormatDuration(options.end.steps), options.logging.format, options.logging.level);
}

using Backends = std::vector<std::unique_ptr<Backend>>;

absl::StatusOr<Backends> MakeGpus(const std::vector<int32_t>& numbers, const DeviceOptions& options) {
  Backends gpus;
  for (const int32_t device : numbers) {
    GDN_ASSIGN_OR_RETURN(gpus.emplace_back(), MakeGpuBackend({.device = device,
                                                              .graphs = options.gpu_graphs,
                                                              .math = options.math,
                                                              .matrix_units = options.matrix_units}));
    const BackendInfo& info = gpus.back()->info();
    if (!info.graphs.empty()) spdlog::info("replaying of decode steps on GPU {} is {}", device, info.graphs);
  }
  return gpus;
}

// "auto" takes the GPU if there is a usable one, else the CPU, and logs which and why. If there is no usable GPU, "gpu"
// fails with the error of the runtime, and so does a choice of several GPUs.
absl::StatusOr<Backends> ChooseBackends(const DeviceOptions& options) {
  std::vector<int32_t> numbers = options.gpu_devices;
  if (numbers.empty()) numbers = {options.gpu_device};
  Backends made;
  if (options.backend == "null") {
    for (size_t i = 0; i < numbers.size(); ++i) made.push_back(MakeNullBackend());
    return made;
  }
  if (options.backend == "auto" || options.backend == "gpu") {
    absl::StatusOr<Backends> gpus = MakeGpus(numbers, options);
    if (gpus.ok() || options.backend == "gpu" || numbers.size() > 1) return gpus;
    spdlog::info("computing on the CPU: {}", std::string(gpus.status().message()));
  }
  GDN_ASSIGN_OR_RETURN(made.emplace_back(), MakeCpuBackend({.threads = options.threads, .math = options.math}));
  return made;
}

absl::Status WritePort(OutputFile& file, int port) {
  absl::Status status = file.Append(StrCat(port, "\n"));
  if (status.ok()) status = file.Commit();
  return WithPrefix(status, "--port-file");
}

// Returns the process's exit code. Changes `options` when the --config file changes.
absl::StatusOr<int> Serve(const CommandFlags& line, ServerOptions& options, const sigset_t& signals) {
  GDN_ASSIGN_OR_RETURN(Backends backends, ChooseBackends(options.device));
  const size_t devices = backends.size();
  GDN_ASSIGN_OR_RETURN(std::unique_ptr<GdnServer> server, GdnServer::Make(std::move(backends), options));
  LogConfiguration(options, server->backend().info(), server->state_options());
  if (devices > 1) spdlog::info("devices={}, each with all models and device_state_bytes", devices);
  // The port file is opened before calls are accepted. Otherwise a server that cannot write it would end with sessions
  // in it.
  std::optional<OutputFile> port_file;
  if (!options.port_file.empty()) {
    absl::StatusOr<OutputFile> file = OutputFile::Create(options.port_file);
    if (!file.ok()) return WithPrefix(file.status(), "--port-file");
    port_file.emplace(*std::move(file));
  }
  GDN_RETURN_IF_ERROR(server->Start());
  std::cout << "gdn_server listening on " << absl::StrJoin(server->addresses(), ", ") << std::endl;
  if (const auto port = server->http_port(); port.has_value())
    spdlog::info("HTTP on port {}: /metrics, /healthz, /readyz, /statusz", *port);
  if (port_file.has_value()) GDN_RETURN_IF_ERROR(WritePort(*port_file, server->port()));
  TellServiceManager("READY=1");

  const int signal = WaitForEnd(*server, line, options, signals);
  TellServiceManager("STOPPING=1");
  spdlog::info("signal {}: draining, at most {}; then sessions are made durable, at most {}", signal,
               absl::FormatDuration(options.end.steps), absl::FormatDuration(options.end.checkpoints));
  return DrainAndEnd(std::move(server), options.end);
}

int Main(int argc, char** argv) {
  SetUpServerProcess();
  // Blocked before any thread starts, so that only WaitForEnd receives them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const CommandFlags line = ReadCommandLine({argv + 1, argv + argc});
  if (line.status.ok() && (line.help || line.version)) {
    std::cout << (line.help ? StrCat(kUsage, "\n\nFlags:\n", OptionsHelp()) : VersionText("gdn_server"));
    return 0;
  }
  absl::StatusOr<ServerOptions> options = ReadOptions(line);
  if (!options.ok()) {
    std::cerr << "gdn_server: " << options.status().message() << "\nRun gdn_server --help for the flags.\n";
    return ChecksConfig(line) ? 1 : 2;
  }
  if (options->check_config) {
    std::cout << PrintOptions(*options);
    return 0;
  }
  InitLogging(options->logging);
  options->version = ProductVersion();
  // Does what a SIGTERM from outside does. All threads block SIGTERM, so Serve receives it.
  const auto end = [] { kill(getpid(), SIGTERM); };
  if (options->end.tell_of_device) options->on_device_failure = end;
  options->on_drain_request = end;
  options->graph_counts = GpuGraphCountsOf;
  const absl::StatusOr<int> served = Serve(line, *options, signals);
  if (served.ok()) return *served;
  spdlog::error("{}", std::string(served.status().message()));
  return 1;
}

}  // namespace
}  // namespace gdn

int main(int argc, char** argv) { return gdn::Main(argc, argv); }
