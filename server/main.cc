// Wiring: flags, backend, models, sessions, engine, server, signals.

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <spdlog/spdlog.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/backend_choice.h"
#include "server/flags.h"
#include "server/model/loaded_model.h"
#include "server/rpc/server.h"

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

void LogConfiguration(const ServerOptions& options, const BackendInfo& backend, int64_t state_bytes) {
  std::vector<std::string> models;
  for (const auto& [name, directory] : options.models) models.push_back(StrCat(name, "=", directory));
  spdlog::info("gdn_server {} backend={} device=\"{}\" numerics_id={} threads={}", GDN_VERSION, backend.name,
               backend.device, backend.numerics_id, backend.threads);
  spdlog::info(
      "config listen={} models=[{}] state_bytes={} max_draft={} max_batch={} max_message_bytes={} "
      "max_stored_reply_bytes={} "
      "max_queued_steps={} drain_timeout={} log_format={} log_level={}",
      options.listen, absl::StrJoin(models, ", "), state_bytes, options.limits.max_draft, options.limits.max_batch,
      options.limits.max_message_bytes, options.limits.max_stored_reply_bytes, options.max_queued_steps,
      absl::FormatDuration(options.drain_timeout), options.logging.format, options.logging.level);
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
  const int64_t state_bytes = StateBudgetBytes(options, *backend, slot_bytes);
  LogConfiguration(options, backend->info(), state_bytes);

  StateStore store(*backend, {.budget_bytes = state_bytes, .max_draft = options.limits.max_draft});
  SessionManager sessions(store);
  FailureReporter failure;
  Batcher batcher(*backend, {.max_queued_steps = options.max_queued_steps,
                             .max_batch_rows = options.limits.max_batch,
                             .on_device_failure = [&failure](const absl::Status& status) { failure.Report(status); }});
  const ServiceContext context{.models = catalog,
                               .sessions = sessions,
                               .store = store,
                               .batcher = batcher,
                               .backend = backend->info(),
                               .version = GDN_VERSION,
                               .limits = options.limits,
                               .max_queued_steps = options.max_queued_steps};
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
  spdlog::info("stopped");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
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
