#include "server/gdn_server.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>

#include <spdlog/spdlog.h>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/bounded_text.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/http_endpoint.h"
#include "server/rpc/service_parts.h"
#include "server/server_memory.h"
#include "server/validation/names.h"

namespace gdn {
namespace {

// Bytes of free call memory that are kept for later calls; more is freed.
constexpr int64_t kKeptCallBytes = int64_t{512} << 20;
constexpr absl::Duration kRingSpin = absl::Microseconds(50);  // of a server whose backend computes elsewhere

std::string DefaultNodeName() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return StrCat(host.data(), "-", getpid());
}

ServedModel Describe(const LoadedModel& model) {
  return {.name = model.name(),
          .family = model.config().model_type,
          .dims = model.config().spec.dims,
          .num_layers = model.config().num_layers,
          .weight_dtype = model.weight_dtype(),
          .weight_formats = model.memory().Formats(),
          .weight_bytes = model.memory().total(),
          .fingerprint = model.fingerprint(),
          .slice = model.heads().is_whole()
                       ? ModelSlice{}
                       : ModelSlice{.heads = model.heads(), .model_fingerprint = model.whole_fingerprint()},
          .layers = model.layers(),
          .all_gdn_layers = model.config().gdn_layers,
          .layer_digests = model.digests().layers,
          .digest_tensors = model.digests().tensors};
}

}  // namespace

absl::StatusOr<std::unique_ptr<GdnServer>> GdnServer::Make(std::vector<std::unique_ptr<Backend>> backends,
                                                           GdnServerOptions options) {
  const BackendInfo& first = backends.front()->info();
  for (const auto& backend : backends) {
    if (backend->info().numerics_id == first.numerics_id) continue;
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kDeviceUnsupported,
                     StrCat("the devices compute different bits (", first.device, ": ", first.numerics_id, "; ",
                            backend->info().device, ": ", backend->info().numerics_id,
                            "), but a session may be placed on any device; run one server for each device"),
                     {{"device", backend->info().device}});
  }
  std::unique_ptr<GdnServer> server(new GdnServer(std::move(backends), std::move(options)));
  GDN_RETURN_IF_ERROR(server->LoadModels());
  return server;
}

absl::StatusOr<std::unique_ptr<GdnServer>> GdnServer::Make(std::unique_ptr<Backend> backend, GdnServerOptions options) {
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(std::move(backend));
  return Make(std::move(backends), std::move(options));
}

GdnServer::GdnServer(std::vector<std::unique_ptr<Backend>> backends, GdnServerOptions options)
    : options_(std::move(options)), tracer_(options_.trace_calls) {
  for (std::unique_ptr<Backend>& backend : backends) {
    const auto number = static_cast<int32_t>(devices_.size());
    devices_.emplace_back(std::move(backend),
                          [this, number](const absl::Status& failure) { OnDeviceFailure(number, failure); });
  }
}

std::vector<StateDevice> GdnServer::StateDevices() {
  std::vector<StateDevice> devices;
  for (Device& device : devices_) devices.push_back({.backend = *device.backend, .health = device.health});
  return devices;
}

absl::Status GdnServer::device_status() const {
  for (const Device& device : devices_) {
    if (device.health.status().ok()) return absl::OkStatus();
  }
  return devices_.front().health.status();
}

std::optional<int> GdnServer::http_port() const {
  return http_ == nullptr ? std::nullopt : std::optional(http_->port());
}

GdnServer::~GdnServer() {
  TellOfFailure(nullptr);
  std::unique_ptr<HttpEndpoint> http;  // destroyed after the lock is released
  {
    absl::MutexLock lock(&http_mu_);
    http = std::move(http_);
  }
  http = nullptr;
  rpc_ = nullptr;  // no call uses it from here on
  fleet_ = nullptr;
  if (states_ != nullptr) states_->StopWatching();
}

absl::Status GdnServer::LoadModels() {
  int64_t slot_bytes = 0;
  for (const auto& [name, directory] : options_.models) {
    const absl::Time begin = absl::Now();
    LoadOptions load = options_.load;
    for (const auto& [model, folder] : options_.adapters) {
      if (model == name) load.adapter = folder;
    }
    for (Device& device : devices_) {
      GDN_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(*device.backend, name, directory, load));
      device.models.push_back(std::move(loaded));
    }
    const LoadedModel& model = devices_.front().models.back();
    const WeightMemory& memory = model.memory();
    spdlog::info(
        "model loaded name={} family={} dims=\"{}\" heads={} gdn_layers={} of {} weights=\"{}\" weight_bytes={} "
        "(in files {}) fingerprint={} in {}",
        name, model.config().model_type, LayerDimsToString(model.config().spec.dims), HeadSliceToString(model.heads()),
        model.layers().size(), model.config().num_layers, absl::StrJoin(memory.Formats(), ", "), memory.total(),
        memory.in_files, model.fingerprint(), absl::FormatDuration(absl::Now() - begin));
    if (!load.layers.empty()) {
      std::vector<int32_t> layers;
      for (const auto& [layer, weights] : model.layers()) layers.push_back(layer);
      spdlog::info("model {}: serves the layers {}, by --layers={}", name, NumberRanges(layers, kMostListBytes),
                   LayerRangesToString(load.layers));
    }
    if (memory.widened_matrices > 0) {
      spdlog::warn(
          "model {}: {} quantised matrices were converted to float32, because backend {} does not support their format "
          "or the file's layout of it",
          name, memory.widened_matrices, backend().info().name);
    }
    GDN_ASSIGN_OR_RETURN(
        const StateLayout layout,
        StateLayout::Make(model.config().spec.dims, options_.limits.max_draft, options_.states.state_dtype));
    slot_bytes = std::max(slot_bytes, layout.slot_bytes());
    ServedModel& served = catalog_.emplace(name, Describe(model)).first->second;
    for (size_t i = 1; i < devices_.size(); ++i) served.layers_elsewhere.push_back(devices_[i].models.back().layers());
  }
  state_options_ = options_.states;
  state_options_.max_draft = options_.limits.max_draft;
  state_options_.device_bytes = std::numeric_limits<int64_t>::max();  // set below to the smallest device's
  for (const Device& device : devices_) {
    state_options_.device_bytes =
        std::min(state_options_.device_bytes, DeviceBudgetBytes(options_.memory, *device.backend, slot_bytes));
  }
  state_options_.host_bytes = HostBudgetBytes(options_.memory, backend().info());
  state_options_.prefix_bytes = PrefixBudgetBytes(options_.memory, state_options_.host_bytes);
  if (state_options_.redis.node_name.empty()) state_options_.redis.node_name = DefaultNodeName();
  return absl::OkStatus();
}

absl::Status GdnServer::Start() {
  GDN_ASSIGN_OR_RETURN(security_, Security::Make(options_.security));
  if (security_->authenticator() != nullptr) audit_ = std::make_unique<AuditLog>();
  ledger_ = std::make_unique<ByteLedger>(LedgerOptions(options_, state_options_, devices_.size()));
  GDN_ASSIGN_OR_RETURN(states_, StateService::Make(StateDevices(), *ledger_, flows_, state_options_));
  BatcherOptions engine = options_.engine;
  engine.max_batch_rows = options_.limits.max_batch;
  std::vector<std::unique_ptr<Batcher>> batchers;
  for (Device& device : devices_) {
    batchers.push_back(std::make_unique<Batcher>(*device.backend, device.health, engine));
  }
  engines_ = std::make_unique<Engines>(std::move(batchers));
  GDN_ASSIGN_OR_RETURN(std::string principal_key, options_.principals.key_file.empty()
                                                      ? states_->KeepSecret()
                                                      : ReadPrincipalKey(options_.principals.key_file));
  GDN_RETURN_IF_ERROR(ListPrincipals(std::move(principal_key)));
  std::vector<Backend*> backends;
  for (const Device& device : devices_) backends.push_back(device.backend.get());
  call_memory_ = std::make_unique<HostBlockPool>(std::move(backends), kKeptCallBytes);
  shared_regions_ = std::make_unique<SharedRegions>(options_.shared_memory);
  StartRings();
  const absl::Status serves = Serve();
  if (serves.ok()) return serves;
  if (rpc_ == nullptr) {
    states_->GiveUpStart();
  } else {  // calls may already run
    Drain(absl::ZeroDuration(), absl::Minutes(1));
  }
  return serves;
}

void GdnServer::StartRings() {
  if (!shared_regions_->offered()) {
    spdlog::info("no memory is shared with clients: {}", shared_regions_->unavailable());
    return;
  }
  const bool computes_here = backend().info().threads > 0;  // on the processors that a spinning thread would take
  const absl::Duration spin =
      options_.shared_memory.ring_spin.value_or(computes_here ? absl::ZeroDuration() : kRingSpin);
  absl::StatusOr<std::unique_ptr<Rings>> rings = Rings::Start(options_.shared_memory.directory, spin);
  if (!rings.ok()) {
    spdlog::warn("no rings are offered to clients on this host: {}", std::string(rings.status().message()));
    return;
  }
  rings_ = *std::move(rings);
}

ServiceParts GdnServer::PartsForCalls(int64_t recovered_sessions) {
  const StepLimits& limits = options_.limits;
  const std::string numerics_id = NumericsIdFor(backend().info().numerics_id, states_->store().options().base_dtype);
  const CommonParts common{.calls = calls_,
                           .access = {.principals = *principals_,
                                      .authenticator = security_->authenticator(),
                                      .audit = audit_.get(),
                                      .owners = *owners_,
                                      .ledger = *ledger_},
                           .lookup = {.sessions = states_->sessions(),
                                      .fleet = fleet_.get(),
                                      .owners = *owners_,
                                      .max_batch = limits.max_batch},
                           .stats = stats_,
                           .tracer = tracer_,
                           .refusals = refusals_,
                           .transfers = transfers_,
                           .drain = drain_};
  const SessionParts sessions{.access = common.access,
                              .lookup = common.lookup,
                              .states = *states_,
                              .models = catalog_,
                              .limits = limits,
                              .numerics_id = numerics_id,
                              .default_idle_ttl = options_.session_idle_ttl,
                              .timers = flows_};
  const StepParts steps{.common = common,
                        .limits = limits,
                        .models = catalog_,
                        .environment = states_->environment(),
                        .checkpointer = states_->checkpointer(),
                        .residency = states_->residency(),
                        .engines = *engines_,
                        .shared_regions = *shared_regions_,
                        .call_memory = *call_memory_,
                        .rate_clock = *options_.rate_clock};
  return {.common = common,
          .steps = steps,
          .sessions = sessions,
          .streams = {.common = common,
                      .sessions = sessions,
                      .engines = *engines_,
                      .shared_regions = *shared_regions_,
                      .rings = rings_.get(),
                      .steps = steps},
          .info = {.common = common,
                   .states = *states_,
                   .models = catalog_,
                   .devices = StateDevices(),
                   .engines = *engines_,
                   .shared_regions = *shared_regions_,
                   .limits = limits,
                   .max_queued_steps = options_.engine.max_queued_steps,
                   .rate_clock = *options_.rate_clock,
                   .version = options_.version,
                   .numerics_id = numerics_id,
                   .recovered_sessions = recovered_sessions},
          .admin = {.common = common,
                    .engines = *engines_,
                    .metrics_text = [this] { return MetricsText(); },
                    .begin_drain = options_.on_drain_request}};
}

absl::Status GdnServer::Serve() {
  GDN_ASSIGN_OR_RETURN(const int64_t recovered, RecoverSessions());
  GDN_RETURN_IF_ERROR(JoinFleet());
  parts_ = std::make_unique<ServiceParts>(PartsForCalls(recovered));
  states_->StartScrubbing(options_.states.scrub, [this] { return Activity(); });
  GDN_ASSIGN_OR_RETURN(rpc_, RpcServer::Start(*parts_, options_.listen,
                                              {.limits = TransportLimitsOf(options_),
                                               .tls = security_->tls(),
                                               .reflection = options_.security.reflection}));
  TellOfFailure(rpc_.get());
  return StartHttp();
}

std::optional<SessionSpec> GdnServer::SpecOfServed(const std::string& model) const {
  absl::StatusOr<SessionSpec> spec = SpecOfModel(catalog_, ModelName(model));
  return spec.ok() ? std::optional(*std::move(spec)) : std::nullopt;
}

absl::Status GdnServer::JoinFleet() {
  if (!options_.states.redis.share_sessions) return absl::OkStatus();
  fleet_ =
      std::make_unique<Fleet>(FleetParts{.redis = *states_->redis(),
                                         .tiers = states_->tiers(),
                                         .room = states_->room(),
                                         .sessions = states_->sessions(),
                                         .environment = states_->environment(),
                                         .executor = flows_,
                                         .spec_of = [this](const std::string& model) { return SpecOfServed(model); }},
                              options_.fleet);
  GDN_RETURN_IF_ERROR(fleet_->Begin());
  return absl::OkStatus();
}

void GdnServer::LeaveFleet(absl::Duration timeout) {
  if (fleet_ == nullptr) return;
  rpc_->ReportNotServing();
  const bool gone = fleet_->Leave(options_.fleet.notice, timeout, [this](int64_t all, int64_t left, int64_t failed) {
    drain_.SetSessions({.all = all, .durable = left, .failed = failed});
  });
  if (!gone) spdlog::warn("some sessions could not be handed over; others take them at their last checkpoint");
}

absl::StatusOr<int64_t> GdnServer::RecoverSessions() {
  GDN_ASSIGN_OR_RETURN(const Recovered recovered,
                       states_->Recover([this](const std::string& model) { return SpecOfServed(model); }));
  if (recovered.sessions + recovered.passed_over > 0) {
    spdlog::info("sessions recovered={} passed_over={}", recovered.sessions, recovered.passed_over);
  }
  return recovered.sessions;
}

ScrubActivity GdnServer::Activity() const {
  ScrubActivity activity{.busy = engines_->queued_steps() > 0 || ledger_->held(BytePool::kCalls) > 0, .work = 0};
  for (int32_t device = 0; device < engines_->size(); ++device) {
    for (const BatchStats::OfKind& kind : engines_->at(device).stats().kinds) {
      activity.work += kind.steps.load(std::memory_order_relaxed);
    }
  }
  return activity;
}

std::function<bool(std::string_view)> GdnServer::MaySeeStatus() const {
  const Authenticator* const authenticator = security_->authenticator();
  if (options_.may_see_status || authenticator == nullptr) return options_.may_see_status;
  return [authenticator](std::string_view authorization) {
    if (authorization.empty()) return false;
    const absl::StatusOr<Identity> identity = authenticator->LogIn({.authorization = {authorization}});
    return identity.ok() && identity->admin;
  };
}

absl::Status GdnServer::StartHttp() {
  if (options_.http_listen.empty()) return absl::OkStatus();
  GDN_ASSIGN_OR_RETURN(std::unique_ptr<HttpEndpoint> http, HttpEndpoint::Start(options_.http_listen, Sources(),
                                                                               {.may_see_status = MaySeeStatus(),
                                                                                .principal_names = principal_names_,
                                                                                .addresses = rpc_->addresses()}));
  absl::MutexLock lock(&http_mu_);
  http_ = std::move(http);
  return absl::OkStatus();
}

MetricSources GdnServer::Sources() const {
  return {.info = parts_->info,
          .graph_counts = options_.graph_counts,
          .start_time = start_time_,
          .disk = states_->disk(),
          .scrubber = states_->scrubber(),
          .listener = rpc_ == nullptr ? nullptr : &rpc_->listener(),
          .rings = rings_.get()};
}

std::string GdnServer::MetricsText() {
  std::vector<std::optional<int64_t>> device_free_bytes;
  {
    absl::MutexLock lock(&http_mu_);
    if (http_ != nullptr) device_free_bytes = http_->sampler().device_free_bytes();
  }
  return ServerMetrics(Sources(), device_free_bytes);
}

bool GdnServer::Drain(absl::Duration timeout, absl::Duration checkpoint_timeout) {
  drain_.Begin();
  TellOfFailure(nullptr);
  if (http_ != nullptr) http_->SetDraining();
  LeaveFleet(checkpoint_timeout);
  // Make most sessions durable while admins can still see the progress. Those that change later are made durable after
  // the connections have ended.
  absl::Duration checkpoint_time_left = checkpoint_timeout;
  const bool ended = rpc_->Stop(timeout, [&] {
    const SteadyTime begun = SteadyNow();
    states_->MakeDurable(checkpoint_timeout, [this](int64_t all, int64_t durable, int64_t failed) {
      drain_.SetSessions({.all = all, .durable = durable, .failed = failed});
    });
    checkpoint_time_left = std::max(absl::ZeroDuration(), checkpoint_timeout - (SteadyNow() - begun));
  });
  if (!ended) spdlog::warn("some calls had not ended when the drain timeout passed");
  if (fleet_ != nullptr) fleet_->LeaveRest(checkpoint_time_left);
  const bool durable = states_->Drain(checkpoint_time_left);
  if (!durable) spdlog::error("some sessions could not be made durable; they come back at their last checkpoint");
  if (fleet_ != nullptr) fleet_->End();
  return ended && durable;
}

void GdnServer::OnDeviceFailure(int32_t device, const absl::Status& failure) {
  spdlog::critical("device {} of {} failed; steps of sessions on it are refused until the server is restarted: {}",
                   device, devices_.size(), std::string(failure.message()));
  {
    absl::MutexLock lock(&mu_);
    Tell();
    if (device_status().ok() || std::exchange(none_works_, true)) return;
  }
  if (options_.on_device_failure) options_.on_device_failure();
}

void GdnServer::Tell() {
  if (told_ == nullptr) return;
  if (!device_status().ok()) return told_->ReportNotServing();
  const bool degraded =
      std::ranges::any_of(devices_, [](const Device& device) { return !device.health.status().ok(); });
  if (degraded) told_->ReportDegraded();
}

void GdnServer::TellOfFailure(RpcServer* rpc) {
  absl::MutexLock lock(&mu_);
  told_ = rpc;
  Tell();
}

}  // namespace gdn
