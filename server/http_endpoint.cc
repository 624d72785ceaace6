#include "server/http_endpoint.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/layer_dims.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/observability/status_page.h"

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
  GDN_ASSIGN_OR_RETURN(endpoint->server_, HttpServer::Start(listen, std::move(handlers)));
  endpoint->sampler_.Start();
  return endpoint;
}

bool HttpEndpoint::MaySeeStatus(const HttpRequest& request) const {
  if (options_.may_see_status) return options_.may_see_status(request.authorization);
  return request.from_loopback && IsLoopback(request.host);
}

std::string HttpEndpoint::Trouble() const {
  if (!sources_.health.status().ok()) return "the device has failed; restart the server";
  if (draining_ || sources_.context.batcher.draining()) return "the server is draining";
  return "";
}

HttpResponse HttpEndpoint::Metrics() const {
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
          .body = ServerMetrics(sources_, sampler_.device_free_bytes())};
}

HttpResponse HttpEndpoint::Ready() const {
  const std::string trouble = Trouble();
  if (trouble.empty()) return {.body = "ready\n"};
  return {.status = 503, .body = StrCat("not ready: ", trouble, "\n")};
}

HttpResponse HttpEndpoint::Status(const HttpRequest& request) const {
  if (!MaySeeStatus(request)) {
    return {.status = 403, .body = "this page names sessions and callers; ask for it from the server's own machine\n"};
  }
  const ServiceContext& context = sources_.context;
  const BackendInfo& info = sources_.backend.info();
  StatusPage page{.version = context.version,
                  .backend = info.name,
                  .device = info.device,
                  .numerics_id = NumericsIdFor(info.numerics_id, context.store.options().base_dtype),
                  .trouble = Trouble(),
                  .now = absl::Now(),
                  .uptime = absl::Now() - sources_.start_time,
                  .sessions = static_cast<int64_t>(context.sessions.size()),
                  .waiting_steps = static_cast<int64_t>(context.batcher.queued_steps()),
                  .addresses = options_.addresses,
                  .seconds = sampler_.seconds(),
                  .traces = context.tracer.on()};
  for (const auto& [name, model] : context.models) {
    page.models.push_back({.name = name,
                           .family = model.family,
                           .dims = LayerDimsToString(model.dims),
                           .weight_dtype = std::string(DTypeName(model.weight_dtype)),
                           .layers = static_cast<int64_t>(model.layers.size())});
  }
  for (const TierUsage& tier : TierUsages(context)) {
    page.tiers.push_back({.name = tier.name,
                          .used_bytes = tier.used_bytes,
                          .limit_bytes = tier.limit_bytes,
                          .sessions = tier.sessions,
                          .problem = tier.problem});
  }
  for (const auto& call : context.tracer.Slowest(kMostCalls)) {
    page.calls.push_back(Describe(*call, options_.principal_names));
  }
  FillHolders(context.ledger, options_.principal_names, page);
  return {.content_type = "text/html; charset=utf-8", .body = RenderStatusPage(page)};
}

}  // namespace gdn
