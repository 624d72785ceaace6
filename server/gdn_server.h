// A whole server: devices with models, sessions and their tiers, an engine for each device, and gRPC in front of them.
//
// What is given to it is a backend for each device and plain options; signals, flags and log settings are the caller's.
// It is made in two steps, so that a caller can tell what it will serve before it does.
// Thread safety: Make, Start and Drain on one thread; the parts are safe from any. Ownership: owns everything.
// Destruction ends calls at once and makes nothing durable: that is Drain's.
//
//   GDN_ASSIGN_OR_RETURN(auto server, GdnServer::Make(std::move(backend), {.models = {{"qwen", "/models/qwen"}}}));
//   GDN_RETURN_IF_ERROR(server->Start());
//   std::cout << server->port();
//   server->Drain(absl::Seconds(30));
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/task/inline_executor.h"
#include "base/task/thread_executor.h"
#include "kernels/backend.h"
#include "server/admission/byte_ledger.h"
#include "server/batcher/engines.h"
#include "server/fleet/fleet.h"
#include "server/health/device_health.h"
#include "server/http_endpoint.h"
#include "server/model/loaded_model.h"
#include "server/model/served_model.h"
#include "server/options/server_options.h"
#include "server/rpc/server.h"
#include "server/rpc/service_context.h"
#include "server/security/audit.h"
#include "server/security/security.h"
#include "server/session/state_service.h"
#include "server/shared_memory/shared_regions.h"
#include "server/trace/call_tracer.h"

namespace gdn {

class GdnServer {
 public:
  // Loads the models on every device, and decides how much memory states get. Errors of LoadModel; INVALID_ARGUMENT
  // where the backends, at least one, differ in their numerics.
  static absl::StatusOr<std::unique_ptr<GdnServer>> Make(std::vector<std::unique_ptr<Backend>> backends,
                                                         GdnServerOptions options);
  static absl::StatusOr<std::unique_ptr<GdnServer>> Make(std::unique_ptr<Backend> backend, GdnServerOptions options);
  ~GdnServer();

  // Opens the tiers, finds the sessions that an earlier process left there, and takes calls. Errors of
  // StateService::Make, StateService::Recover and RpcServer::Start.
  absl::Status Start();

  // After Start, one thread at a time: what callers may use from now on. What is over it stays, and no more is let in.
  void SetQuotas(const QuotaSettings& quotas);

  // Health turns NOT_SERVING and new steps are refused; accepted ones, exports and imports may take until `timeout`.
  // Then sessions are made durable, where there is a place for it, until `checkpoint_timeout`, for the most part while
  // GetServerInfo tells how far that is. False, and a line in the log, where a call had not ended or a session was not
  // durable.
  bool Drain(absl::Duration timeout, absl::Duration checkpoint_timeout = absl::InfiniteDuration());
  // OK while a device works; else what the first failed with, for good.
  absl::Status device_status() const;
  // After Drain: whether calls hang, so that this must not be destroyed.
  bool has_stuck_calls() const { return rpc_->has_stuck_calls(); }

  Backend& backend() { return *devices_.front().backend; }
  const StateServiceOptions& state_options() const { return state_options_; }

  // After Start.
  int port() const { return rpc_->port(); }
  const std::vector<std::string>& addresses() const { return rpc_->addresses(); }
  HttpEndpoint* http() { return http_.get(); }  // null where there is none
  Fleet* fleet() { return fleet_.get(); }       // null where sessions are not shared
  RpcServer& rpc() { return *rpc_; }
  Security& security() { return *security_; }
  StateService& states() { return *states_; }
  Batcher& batcher() { return engines_->at(0); }
  Engines& engines() { return *engines_; }
  ByteLedger& ledger() { return *ledger_; }
  CallTracer& tracer() { return tracer_; }

 private:
  struct Device {
    Device(std::unique_ptr<Backend> made, std::function<void(const absl::Status&)> on_failure)
        : backend(std::move(made)), health(std::move(on_failure)) {}
    const std::unique_ptr<Backend> backend;
    DeviceHealth health;
    std::vector<LoadedModel> models;
  };
  GdnServer(std::vector<std::unique_ptr<Backend>> backends, GdnServerOptions options);
  absl::Status LoadModels();
  std::vector<StateDevice> StateDevices();
  absl::Status ListPrincipals(std::string key);
  std::optional<SessionSpec> SpecOfServed(const std::string& model) const;
  // Opens the ports, and serves what is there.
  absl::Status Serve();
  absl::Status RecoverSessions();
  absl::Status JoinFleet();
  // Of Drain: sessions go to other servers while calls come.
  void LeaveFleet(absl::Duration timeout);
  ScrubActivity Activity() const;
  absl::Status StartHttp();
  // What /metrics answers.
  std::string MetricsText();
  MetricSources Sources() const;
  // Admins, where there are logins.
  std::function<bool(std::string_view authorization)> MaySeeStatus() const;
  void OnDeviceFailure(int32_t device, const absl::Status& failure);
  // Who is told that a device failed, at whatever time that is.
  void TellOfFailure(RpcServer* rpc);
  void Tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const GdnServerOptions options_;
  const absl::Time start_time_ = absl::Now();

  // Each uses those before it.
  absl::Mutex mu_;
  RpcServer* told_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool none_works_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Device> devices_;  // StatePool::device counts them
  ModelCatalog catalog_;
  StateServiceOptions state_options_;
  CallTracer tracer_;
  OpenCount transfers_;  // what a call leaves behind on the states' threads lets go of it
  RefusalPauses refusals_;
  DrainState drain_;  // a checkpoint that comes late tells it
  ThreadExecutor flows_{{.name = "gdn-flows", .threads = 1}};
  InlineExecutor calls_{flows_};
  std::unique_ptr<ByteLedger> ledger_;
  std::unique_ptr<HostBlockPool> call_memory_;
  std::unique_ptr<SharedRegions> shared_regions_;
  std::unique_ptr<StateService> states_;
  std::unique_ptr<Engines> engines_;
  std::unique_ptr<Principals> principals_;
  std::unique_ptr<SessionOwners> owners_;
  std::unique_ptr<Security> security_;
  std::unique_ptr<AuditLog> audit_;                     // where there are logins
  std::map<std::string, double> listed_weights_;        // as the list of principals has them
  std::map<std::string, std::string> principal_names_;  // of the listed ones' accounts, and of those with quotas
  RpcStats stats_;
  std::unique_ptr<ServiceContext> context_;
  std::unique_ptr<Fleet> fleet_;  // where sessions are shared
  std::unique_ptr<RpcServer> rpc_;
  absl::Mutex http_mu_;  // of calls that look at http_
  std::unique_ptr<HttpEndpoint> http_;
};

}  // namespace gdn
