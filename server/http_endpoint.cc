#include "server/http_endpoint.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/error.h"
#include "base/layer_dims.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/observability/status_page.h"
#include "server/observability/status_script.h"

namespace gdn {
namespace {

constexpr size_t kMostCalls = 12;
constexpr size_t kMostHolders = 20;

StatusPage::Call Describe(const CallTrace& trace, const std::map<std::string, std::string>& names) {
  const auto known = names.find(trace.principal);
  StatusPage::Call call{.method = trace.method,
                        .session = trace.session,
                        .principal = known == names.end() ? trace.principal.substr(0, 12) : known->second,
                        .trace_id = trace.context == nullptr ? "" : trace.context->trace_id,
                        .layer = trace.layer,
                        .rows = trace.rows,
                        .tokens = trace.tokens,
                        .when = trace.begin_time,
                        .duration = absl::Nanoseconds(trace.duration())};
  if (!trace.status.ok()) {
    const std::string reason = ErrorReason(trace.status);
    call.status = reason.empty() ? absl::StatusCodeToString(trace.status.code()) : reason;
  }
  for (const TracedStage& stage : trace.stages()) {
    const std::string name = kTraceStageNames[static_cast<size_t>(stage.stage)];
    const absl::Duration took = absl::Nanoseconds(stage.end_ns - stage.begin_ns);
    const auto same = std::ranges::find(call.stages, name, &std::pair<std::string, absl::Duration>::first);
    if (same == call.stages.end()) {
      call.stages.emplace_back(name, took);
    } else {
      same->second += took;
    }
  }
  return call;
}

// Returns the usage of each device, and then `below`.
std::vector<TierUsage> DeviceUsages(const InfoParts& info, std::vector<TierUsage> below) {
  std::vector<TierUsage> usages;
  for (int32_t device = 0; device < info.states.room().devices(); ++device) {
    const StateStore& store = info.states.room().store(device);
    const absl::Status health = info.devices[static_cast<size_t>(device)].health.status();
    usages.push_back({.name = StrCat("device ", device),
                      .limit_bytes = store.options().budget_bytes,
                      .used_bytes = store.used_bytes(),
                      .sessions = info.states.room().sessions(device),
                      .problem = std::string(health.message())});
  }
  std::ranges::move(below, std::back_inserter(usages));
  return usages;
}

int64_t Percent(double part) { return static_cast<int64_t>(100 * part); }

std::string ScrubNote(const MetricSources& sources) {
  if (sources.scrubber == nullptr) return "";
  const ScrubCounts counts = sources.scrubber->counts();
  const int64_t damaged = counts.copy_used + counts.not_durable + counts.lost;
  const std::string pass =
      counts.last_pass == absl::InfinitePast()
          ? "not all verified yet"
          : StrCat("all verified ", absl::FormatTime("%Y-%m-%d %H:%M", counts.last_pass, absl::UTCTimeZone()), " UTC");
  return StrCat(pass, "; ", damaged, " found damaged since the start, ", counts.lost, " of them lost");
}

void FillHolders(const ByteLedger& ledger, const std::map<std::string, std::string>& names, StatusPage& page) {
  const auto at = [](BytePool pool) { return static_cast<size_t>(pool); };
  for (const ByteLedger::Usage& usage : ledger.usage()) {
    const auto known = names.find(usage.name);
    page.holders.push_back({.name = known == names.end() ? usage.name : known->second,
                            .weight = usage.weight,
                            .state_bytes = usage.held[at(BytePool::kStates)],
                            .device_bytes = usage.held[at(BytePool::kDevice)],
                            .call_bytes = usage.held[at(BytePool::kCalls)],
                            .device_shares = usage.shares[at(BytePool::kDevice)]});
  }
  const auto more = [](const StatusPage::Holder& a, const StatusPage::Holder& b) {
    return std::pair(a.state_bytes, a.call_bytes) > std::pair(b.state_bytes, b.call_bytes);
  };
  std::ranges::stable_sort(page.holders, more);
  if (page.holders.size() <= kMostHolders) return;
  page.more_holders = static_cast<int64_t>(page.holders.size() - kMostHolders);
  page.holders.resize(kMostHolders);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(const std::string& listen,
                                                                  const MetricSources& sources,
                                                                  HttpEndpointOptions options) {
  std::unique_ptr<HttpEndpoint> endpoint(new HttpEndpoint(sources, std::move(options)));
  HttpHandlers handlers;
  handlers["/metrics"] = [self = endpoint.get()](const HttpRequest&) { return self->Metrics(); };
  handlers["/healthz"] = [](const HttpRequest&) { return HttpResponse{.body = "ok\n"}; };
  handlers["/readyz"] = [self = endpoint.get()](const HttpRequest&) { return self->Ready(); };
  handlers["/statusz"] = [self = endpoint.get()](const HttpRequest& request) { return self->Status(request); };
  handlers["/statusz.js"] = [](const HttpRequest&) {
    return HttpResponse{.content_type = "text/javascript; charset=utf-8", .body = kStatusScript};
  };
  handlers["/"] = [](const HttpRequest&) {
    return HttpResponse{.status = 302, .body = "the status page is at /statusz\n", .location = "/statusz"};
  };
  GDN_ASSIGN_OR_RETURN(endpoint->server_, HttpServer::Start(listen, std::move(handlers)));
  endpoint->sampler_.Start();
  return endpoint;
}

bool HttpEndpoint::MaySeeStatus(const HttpRequest& request) const {
  if (options_.may_see_status) return options_.may_see_status(request.authorization);
  return request.from_loopback && IsLoopback(request.host);
}

std::string HttpEndpoint::Trouble() const {
  const std::vector<int32_t> failed = FailedDevices();
  if (failed.size() == sources_.info.devices.size()) return "the device has failed; restart the server";
  if (draining_ || sources_.info.engines.draining()) return "the server is draining";
  if (sources_.listener != nullptr) {
    if (std::string refuses = sources_.listener->Trouble(); !refuses.empty()) return refuses;
  }
  // Without a lease, other servers may take its sessions and serve them.
  if (!sources_.info.states.environment().CheckOurs().ok()) {
    return "this server's lease at Redis has expired, so it refuses calls for its sessions (NODE_LEASE_LAPSED)";
  }
  return "";
}

std::vector<int32_t> HttpEndpoint::FailedDevices() const {
  std::vector<int32_t> failed;
  const std::vector<StateDevice>& devices = sources_.info.devices;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!devices[i].health.status().ok()) failed.push_back(static_cast<int32_t>(i));
  }
  return failed;
}

HttpResponse HttpEndpoint::Metrics() const {
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
          .body = ServerMetrics(sources_, sampler_.device_free_bytes())};
}

HttpResponse HttpEndpoint::Ready() const {
  const std::string trouble = Trouble();
  const std::vector<int32_t> failed = FailedDevices();
  std::vector<std::string> degraded;
  if (!failed.empty()) degraded.push_back(StrCat("failed devices ", absl::StrJoin(failed, ", ")));
  // The folder's name is left out, because anybody may ask.
  if (sources_.disk != nullptr && !sources_.disk->watermarks().problem().empty()) {
    degraded.push_back(StrCat("disk ", Percent(sources_.disk->watermarks().used_share()),
                              " % full, above its watermark, so no new states are put there"));
  }
  if (trouble.empty() && degraded.empty()) return {.body = "ready\n"};
  if (trouble.empty()) return {.body = StrCat("ready, but degraded: ", absl::StrJoin(degraded, "; "), "\n")};
  return {.status = 503, .body = StrCat("not ready: ", trouble, "\n")};
}

HttpResponse HttpEndpoint::Status(const HttpRequest& request) const {
  if (!MaySeeStatus(request)) {
    return {.status = 403,
            .body = options_.may_see_status
                        ? "this page names sessions and callers; send an admin's token: 'Authorization: Bearer TOKEN'\n"
                        : "this page names sessions and callers; ask for it from the server's own machine\n"};
  }
  const InfoParts& info = sources_.info;
  const BackendInfo& backend = info.devices.front().backend.info();
  StatusPage page{.version = info.version,
                  .backend = backend.name,
                  .device = backend.device,
                  .numerics_id = info.numerics_id,
                  .trouble = Trouble(),
                  .now = absl::Now(),
                  .uptime = absl::Now() - sources_.start_time,
                  .sessions = info.states.sessions().sessions(),
                  .waiting_steps = static_cast<int64_t>(info.engines.queued_steps()),
                  .addresses = options_.addresses,
                  .seconds = sampler_.seconds(),
                  .traces = info.common.tracer.on()};
  for (const auto& [name, model] : info.models) {
    page.models.push_back({.name = name,
                           .family = model.family,
                           .dims = model.slice.heads.is_whole() ? LayerDimsToString(model.dims)
                                                                : StrCat(LayerDimsToString(model.dims), ", heads ",
                                                                         HeadSliceToString(model.slice.heads)),
                           .weights = absl::StrJoin(model.weight_formats, ", "),
                           .layers = static_cast<int64_t>(model.layers.size())});
  }
  std::vector<TierUsage> tiers = TierUsages(info.states);
  if (info.devices.size() > 1) {
    tiers.erase(tiers.begin());
    tiers = DeviceUsages(info, std::move(tiers));
  }
  for (const TierUsage& tier : tiers) {
    page.tiers.push_back({.name = tier.name,
                          .used_bytes = tier.used_bytes,
                          .limit_bytes = tier.limit_bytes,
                          .sessions = tier.sessions,
                          .problem = tier.name == "disk" && tier.problem.empty() && sources_.disk != nullptr
                                         ? sources_.disk->watermarks().problem()
                                         : tier.problem,
                          .note = tier.name == "disk" ? ScrubNote(sources_) : ""});
  }
  const PrefixCounts prefixes = info.states.prefixes().counts();
  page.prefixes = {.on = info.states.prefixes().on(),
                   .entries = prefixes.entries,
                   .used_bytes = prefixes.used_bytes,
                   .limit_bytes = prefixes.limit_bytes,
                   .hits = prefixes.hits,
                   .misses = prefixes.misses,
                   .tokens_skipped = prefixes.tokens_skipped};
  for (const auto& call : info.common.tracer.Slowest(kMostCalls)) {
    page.calls.push_back(Describe(*call, options_.principal_names));
  }
  FillHolders(info.common.access.ledger, options_.principal_names, page);
  return {.content_type = "text/html; charset=utf-8", .body = RenderStatusPage(page)};
}

}  // namespace gdn
