// A whole server: devices with their models, sessions and their tiers, an engine for each device, and the gRPC service.
//
// It is made from a backend for each device and plain options. The caller handles signals, flags and log settings. Make
// and Start are two steps, so that the caller can log what the server will serve before it serves.
// Thread safety: Make, Start and Drain on one thread; the parts are safe from any thread. Ownership: owns all parts.
// The destructor ends calls at once and makes nothing durable; call Drain for that.
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
#include "server/model/loaded_model.h"
#include "server/model/served_model.h"
#include "server/options/server_options.h"
#include "server/ring/rings.h"
#include "server/rpc/callers/refusal_pause.h"
#include "server/rpc/callers/session_owners.h"
#include "server/rpc/drain_state.h"
#include "server/rpc/rpc_stats.h"
#include "server/rpc/transport/server.h"
#include "server/security/audit.h"
#include "server/security/security.h"
#include "server/session/state_service.h"
#include "server/shared_memory/shared_regions.h"
#include "server/trace/call_tracer.h"

namespace gdn {

class HttpEndpoint;
struct MetricSources;
struct ServiceParts;

class GdnServer {
 public:
  // Loads the models on every device, and decides how much memory states get. Takes at least one backend. Does not
  // listen yet. Errors of LoadModel and StateLayout::Make; INVALID_ARGUMENT (DEVICE_UNSUPPORTED) if the backends differ
  // in their numerics.
  static absl::StatusOr<std::unique_ptr<GdnServer>> Make(std::vector<std::unique_ptr<Backend>> backends,
                                                         GdnServerOptions options);
  static absl::StatusOr<std::unique_ptr<GdnServer>> Make(std::unique_ptr<Backend> backend, GdnServerOptions options);
  ~GdnServer();

  // Opens the tiers, recovers the sessions that an earlier process left there, joins the fleet if there is one, and
  // begins to serve. Call once. Errors of StateService::Make and Recover, RpcServer::Start, Security::Make,
  // Fleet::Begin and HttpEndpoint::Start, and of the principals' files. After an error the server can only be
  // destroyed.
  absl::Status Start();

  // Replaces the quotas of all callers. Call after Start, from one thread at a time. An account that is over a new
  // quota keeps what it has and gets no more.
  void SetQuotas(const QuotaSettings& quotas);

  // Ends the service in order, and blocks. In a fleet, sessions are first handed over to other servers while calls are
  // still served; this takes FleetOptions::notice and then at most `checkpoint_timeout`. Then health turns NOT_SERVING
  // and new steps are refused; accepted steps and other open calls may take until `timeout`. Then sessions are made
  // durable, if there is a durable tier, within `checkpoint_timeout`; most of this happens while GetServerInfo still
  // tells the progress. Returns false, and logs it, if a call had not ended or a session was not made durable.
  bool Drain(absl::Duration timeout, absl::Duration checkpoint_timeout = absl::InfiniteDuration());
  // OK while at least one device works; else the error of the first device. A failure is permanent.
  absl::Status device_status() const;
  // After Drain: true if calls hang, so that the server must not be destroyed.
  bool has_stuck_calls() const { return rpc_->has_stuck_calls(); }

  Backend& backend() { return *devices_.front().backend; }
  const StateServiceOptions& state_options() const { return state_options_; }

  // Port of the first TCP address (0 if there is none), and the addresses that the server listens on. Valid after
  // Start.
  int port() const { return rpc_->port(); }
  const std::vector<std::string>& addresses() const { return rpc_->addresses(); }
  std::optional<int> http_port() const;    // nullopt without an HTTP port
  Fleet* fleet() { return fleet_.get(); }  // null if sessions are not shared
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
  // Recovers sessions, joins the fleet if there is one, opens the ports and begins to serve. Part of Start.
  absl::Status Serve();
  // Recovers the sessions of the durable tiers, and returns their number. Errors of StateService::Recover.
  absl::StatusOr<int64_t> RecoverSessions();
  ServiceParts PartsForCalls(int64_t recovered_sessions);
  absl::Status JoinFleet();
  // Part of Drain: hands sessions over to other servers while calls are still served.
  void LeaveFleet(absl::Duration timeout);
  ScrubActivity Activity() const;
  absl::Status StartHttp();
  // Returns the text of /metrics.
  std::string MetricsText();
  MetricSources Sources() const;
  // HttpEndpointOptions::may_see_status: the option of this server if it is set, else admins if there are logins, else
  // nullptr.
  std::function<bool(std::string_view authorization)> MaySeeStatus() const;
  // Makes rings_, unless no memory is shared or the socket cannot be made, which the log then says.
  void StartRings();
  void OnDeviceFailure(int32_t device, const absl::Status& failure);
  // Sets the gRPC server to tell of device failures, at once if there was one before; null: none.
  void TellOfFailure(RpcServer* rpc);
  // Sets told_'s health by the devices: not serving if none works, degraded if some have failed.
  void Tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const GdnServerOptions options_;
  const absl::Time start_time_ = absl::Now();

  // Each member uses those before it, so their order matters.
  absl::Mutex mu_;
  RpcServer* told_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool none_works_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Device> devices_;  // by StatePool::device
  ModelCatalog catalog_;
  StateServiceOptions state_options_;
  CallTracer tracer_;
  OpenCount transfers_;  // before states_: work of calls on its threads may still hold the count
  RefusalPauses refusals_;
  DrainState drain_;  // before states_: a checkpoint that ends late reports to it
  ThreadExecutor flows_{{.name = "gdn-flows", .threads = 1}};
  InlineExecutor calls_{flows_};
  std::unique_ptr<ByteLedger> ledger_;
  std::unique_ptr<HostBlockPool> call_memory_;
  std::unique_ptr<SharedRegions> shared_regions_;
  std::unique_ptr<Rings> rings_;  // null: none are offered
  std::unique_ptr<StateService> states_;
  std::unique_ptr<Engines> engines_;
  std::unique_ptr<Principals> principals_;
  std::unique_ptr<SessionOwners> owners_;
  std::unique_ptr<Security> security_;
  std::unique_ptr<AuditLog> audit_;               // null without logins: nothing is audited
  std::map<std::string, double> listed_weights_;  // by name in the list of principals
  // For people: names of listed principals and of those with quotas, by account name.
  std::map<std::string, std::string> principal_names_;
  RpcStats stats_;
  std::unique_ptr<Fleet> fleet_;  // null if sessions are not shared
  std::unique_ptr<ServiceParts> parts_;
  std::unique_ptr<RpcServer> rpc_;
  absl::Mutex http_mu_;  // held by calls that use http_
  std::unique_ptr<HttpEndpoint> http_;
};

}  // namespace gdn
