// Wiring: flags, backend, models, sessions, engine, server, signals.

#include <malloc.h>
#include <pthread.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX's, for sets of signals
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <spdlog/spdlog.h>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/backend_choice.h"
#include "server/flags.h"
#include "server/model/loaded_model.h"
#include "server/rpc/server.h"
#include "server/rpc/session_calls.h"
#include "server/session/state_service.h"
#include "server/validation/names.h"

#ifndef GDN_VERSION
#error "GDN_VERSION comes from CMake"
#endif

namespace gdn {
namespace {

ServedModel Describe(const LoadedModel& model) {
  return {.name = model.name(),
          .family = model.config().family,
          .dims = model.config().dims,
          .num_layers = model.config().num_layers,
          .weight_dtype = model.weight_dtype(),
          .fingerprint = model.fingerprint(),
          .layers = model.layers()};
}

// Turns the server's health when the device is lost, at whatever time that is.
class FailureReporter {
 public:
  void Watch(RpcServer* server) {
    absl::MutexLock lock(&mu_);
    server_ = server;
    if (failed_ && server_ != nullptr) server_->ReportNotServing();
  }
  void Report(const absl::Status& status) {
    spdlog::critical("the device failed; steps are refused until the server is restarted: {}",
                     std::string(status.message()));
    absl::MutexLock lock(&mu_);
    failed_ = true;
    if (server_ != nullptr) server_->ReportNotServing();
  }

 private:
  absl::Mutex mu_;
  RpcServer* server_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
};

// Written whole or not at all: a reader that sees the file sees the number.
absl::Status WritePortFile(const std::string& path, int port) {
  const std::string temporary = StrCat(path, ".tmp");
  std::ofstream file(temporary);
  file << port << "\n";
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::InvalidArgumentError(StrCat("--port-file: cannot write '", path, "'"));
  }
  return absl::OkStatus();
}

// What `auto` stands for: beside a GPU the host's memory is mostly idle; the CPU's states are in it already.
int64_t HostBudgetBytes(const ServerOptions& options, const BackendInfo& backend) {
  if (options.host_state_bytes.has_value()) return *options.host_state_bytes;
  if (backend.unified_memory) return 0;
  return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE) / 4;
}

StateServiceOptions StateOptions(const ServerOptions& options, Backend& backend, int64_t slot_bytes) {
  return {.device_bytes = StateBudgetBytes(options, backend, slot_bytes),
          .max_draft = options.limits.max_draft,
          .stored_reply_bytes = options.stored_reply_bytes,
          .host_bytes = HostBudgetBytes(options, backend.info()),
          .disk_dir = options.disk_dir,
          .disk_bytes = options.disk_state_bytes,
          .redis = options.redis,
          .redis_prefix = options.redis_prefix,
          .policy = {.every_tokens = options.checkpoint_every_tokens,
                     .every = options.checkpoint_every > absl::ZeroDuration() ? options.checkpoint_every
                                                                              : absl::InfiniteDuration()}};
}

absl::StatusOr<Recovered> RecoverSessions(const ServiceContext& context, StateService& states) {
  return states.Recover([&context](const std::string& model) -> std::optional<SessionSpec> {
    absl::StatusOr<SessionSpec> spec = SpecOfModel(context, ModelName(model));
    return spec.ok() ? std::optional(*std::move(spec)) : std::nullopt;
  });
}

void LogConfiguration(const ServerOptions& options, const BackendInfo& backend, const StateServiceOptions& states) {
  std::vector<std::string> models;
  for (const auto& [name, directory] : options.models) models.push_back(StrCat(name, "=", directory));
  spdlog::info("gdn_server {} backend={} device=\"{}\" numerics_id={} threads={}", GDN_VERSION, backend.name,
               backend.device, backend.numerics_id, backend.threads);
  spdlog::info(
      "config listen={} models=[{}] device_state_bytes={} host_state_bytes={} disk_dir={} redis={} "
      "checkpoint_every_tokens={} checkpoint_every={} max_draft={} max_batch={} max_message_bytes={} "
      "max_stored_reply_bytes={} stored_reply_bytes={} max_queued_steps={} drain_timeout={} log_format={} log_level={}",
      options.listen, absl::StrJoin(models, ", "), states.device_bytes, states.host_bytes,
      options.disk_dir.empty() ? "none" : options.disk_dir, options.redis.empty() ? "none" : "set",
      options.checkpoint_every_tokens, absl::FormatDuration(options.checkpoint_every), options.limits.max_draft,
      options.limits.max_batch, options.limits.max_message_bytes, options.limits.max_stored_reply_bytes,
      options.stored_reply_bytes, options.max_queued_steps, absl::FormatDuration(options.drain_timeout),
      options.logging.format, options.logging.level);
}

absl::Status Serve(const ServerOptions& options, const sigset_t& signals) {
  GDN_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, ChooseBackend(options));

  std::vector<LoadedModel> loaded;
  ModelCatalog catalog;
  int64_t slot_bytes = 0;
  for (const auto& [name, directory] : options.models) {
    const absl::Time begin = absl::Now();
    GDN_ASSIGN_OR_RETURN(LoadedModel model, LoadModel(*backend, name, directory));
    spdlog::info("model loaded name={} family={} dims=\"{}\" gdn_layers={} of {} weight_dtype={} fingerprint={} in {}",
                 name, model.config().family, LayerDimsToString(model.config().dims), model.layers().size(),
                 model.config().num_layers, DTypeName(model.weight_dtype()), model.fingerprint(),
                 absl::FormatDuration(absl::Now() - begin));
    GDN_ASSIGN_OR_RETURN(const StateLayout layout, StateLayout::Make(model.config().dims, options.limits.max_draft));
    slot_bytes = std::max(slot_bytes, layout.slot_bytes());
    catalog.emplace(name, Describe(model));
    loaded.push_back(std::move(model));
  }
  const StateServiceOptions state_options = StateOptions(options, *backend, slot_bytes);
  LogConfiguration(options, backend->info(), state_options);

  GDN_ASSIGN_OR_RETURN(const std::unique_ptr<StateService> states, StateService::Make(*backend, state_options));
  FailureReporter failure;
  Batcher batcher(*backend, {.max_queued_steps = options.max_queued_steps,
                             .max_batch_rows = options.limits.max_batch,
                             .on_device_failure = [&failure](const absl::Status& status) { failure.Report(status); }});
  states->BindDevice([&batcher] { return batcher.device_status(); },
                     [&batcher](const absl::Status& status) { batcher.NoteDeviceFailure(status); });
  ServiceContext context{.models = catalog,
                         .sessions = states->sessions(),
                         .store = states->store(),
                         .residency = states->residency(),
                         .checkpointer = states->checkpointer(),
                         .environment = states->environment(),
                         .batcher = batcher,
                         .backend = backend->info(),
                         .version = GDN_VERSION,
                         .limits = options.limits,
                         .max_queued_steps = options.max_queued_steps,
                         .session_idle_ttl = options.session_idle_ttl > absl::ZeroDuration()
                                                 ? options.session_idle_ttl
                                                 : absl::InfiniteDuration()};
  const auto unbind =
      absl::MakeCleanup([&states] { states->BindDevice(nullptr, nullptr); });  // before the batcher goes
  GDN_ASSIGN_OR_RETURN(const Recovered recovered, RecoverSessions(context, *states));
  context.recovered_sessions = recovered.sessions;
  if (recovered.sessions + recovered.passed_over > 0) {
    spdlog::info("sessions recovered={} passed_over={}", recovered.sessions, recovered.passed_over);
  }
  GDN_ASSIGN_OR_RETURN(const std::unique_ptr<RpcServer> server, RpcServer::Start(context, options.listen));
  failure.Watch(server.get());
  const std::string host = options.listen.substr(0, options.listen.rfind(':'));
  std::cout << "gdn_server listening on " << host << ":" << server->port() << std::endl;
  if (!options.port_file.empty()) GDN_RETURN_IF_ERROR(WritePortFile(options.port_file, server->port()));

  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("signal {}: draining, at most {}", signal, absl::FormatDuration(options.drain_timeout));
  failure.Watch(nullptr);
  const bool drained = server->Stop(options.drain_timeout);
  if (!drained) spdlog::warn("some steps had not ended when the drain timeout passed");
  if (!states->Drain())
    spdlog::error("some sessions could not be made durable; they come back at their last checkpoint");
  spdlog::info("stopped");
  return absl::OkStatus();
}

// Messages of megabytes come and go: memory that is given back after each is taken anew page by page, which costs more than
// the copy into it.
void KeepFreedMemory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
}

int Main(int argc, char** argv) {
  KeepFreedMemory();
  // Blocked before any thread is made, so that only sigwait sees them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const absl::StatusOr<ServerOptions> options = ParseServerFlags(argc, argv);
  absl::Status status = options.status();
  if (status.ok()) status = InitLogging(options->logging);
  if (!status.ok()) {
    std::cerr << "gdn_server: " << status.message() << "\nRun gdn_server --help for the flags.\n";
    return 2;
  }
  status = Serve(*options, signals);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}

}  // namespace
}  // namespace gdn

int main(int argc, char** argv) { return gdn::Main(argc, argv); }
