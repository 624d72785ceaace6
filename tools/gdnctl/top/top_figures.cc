#include "tools/gdnctl/top/top_figures.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"

namespace gdn {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The layers of a sequence may be apart by a step.
int64_t Tokens(const v1::Session& session) {
  int64_t tokens = 0;
  for (const v1::LayerState& layer : session.layers()) tokens = std::max<int64_t>(tokens, layer.token_count());
  return tokens;
}

std::optional<double> Rate(double grown, double seconds) {
  if (seconds <= 0) return std::nullopt;
  return std::max(grown, 0.0) / seconds;
}

double Percentile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

TopFigures::Method MethodOf(const std::string& name, const std::vector<const v1::CallTrace*>& calls, double seconds) {
  double tokens = 0, rows = 0;
  std::vector<double> queued, taken;
  for (const v1::CallTrace* call : calls) {
    tokens += static_cast<double>(call->tokens());
    rows += call->rows();
    double queue = 0;
    for (const v1::CallStage& stage : call->stages()) {
      if (stage.stage() == v1::TRACE_STAGE_QUEUE) queue += static_cast<double>(stage.duration_ns());
    }
    queued.push_back(queue / 1e6);
    taken.push_back(static_cast<double>(call->duration_ns()) / 1e6);
  }
  return {.name = name,
          .calls = Rate(static_cast<double>(calls.size()), seconds),
          .tokens = Rate(tokens, seconds),
          .rows = rows / static_cast<double>(calls.size()),
          .queue_p50_ms = Percentile(queued, 0.5),
          .p50_ms = Percentile(taken, 0.5),
          .p99_ms = Percentile(taken, 0.99)};
}

void FillTiers(const TopSample& before, const TopSample& now, TopFigures& figures) {
  const auto& earlier = before.info.tiers();
  for (const v1::TierInfo& tier : now.info.tiers()) {
    const auto was =
        std::find_if(earlier.begin(), earlier.end(), [&](const auto& other) { return other.name() == tier.name(); });
    const int64_t stores = tier.stores() - (was == earlier.end() ? 0 : was->stores());
    const int64_t loads = tier.loads() - (was == earlier.end() ? 0 : was->loads());
    figures.tiers.push_back({.info = tier,
                             .stores = Rate(static_cast<double>(stores), figures.seconds),
                             .loads = Rate(static_cast<double>(loads), figures.seconds)});
  }
}

void FillSessions(const TopSample& before, const TopSample& now, TopFigures& figures) {
  std::map<std::string, int64_t> earlier;
  for (const v1::Session& session : before.sessions) earlier[session.name()] = Tokens(session);
  double all = 0;
  for (const v1::Session& session : now.sessions) {
    const int64_t count = Tokens(session);
    const auto was = earlier.find(session.name());
    const auto grown = static_cast<double>(count - (was == earlier.end() ? 0 : was->second));
    all += std::max(grown, 0.0);
    figures.sessions.push_back({.session = session, .count = count, .tokens = Rate(grown, figures.seconds)});
  }
  std::stable_sort(figures.sessions.begin(), figures.sessions.end(), [](const auto& a, const auto& b) {
    return std::pair(a.tokens, a.count) > std::pair(b.tokens, b.count);
  });
  figures.tokens = Rate(all, figures.seconds);
}

OrderedJson Number(const std::optional<double>& value) {
  return value.has_value() ? OrderedJson(*value) : OrderedJson(nullptr);
}

}  // namespace

absl::StatusOr<TopSample> TakeTopSample(Client& client) {
  TopSample sample;
  sample.at = absl::Now();
  GDN_ASSIGN_OR_RETURN(sample.info, client.GetServerInfo());
  GDN_ASSIGN_OR_RETURN(sample.sessions, client.ListSessions());
  GDN_ASSIGN_OR_RETURN(sample.traced, client.TraceCalls(v1::TraceCallsRequest()));
  return sample;
}

TopFigures FiguresBetween(const TopSample& before, const TopSample& now) {
  TopFigures figures;
  figures.at = now.at;
  figures.seconds = absl::ToDoubleSeconds(now.at - before.at);
  figures.info = now.info;
  FillTiers(before, now, figures);
  FillSessions(before, now, figures);
  figures.traced = now.traced.kept() > 0;
  std::map<std::string, std::vector<const v1::CallTrace*>> methods;
  for (const v1::CallTrace& call : now.traced.calls()) {
    const int64_t begin = call.begin_time().seconds() * 1'000'000'000 + call.begin_time().nanos();
    if (begin >= absl::ToUnixNanos(before.at)) methods[call.method()].push_back(&call);
  }
  for (const auto& [name, calls] : methods) figures.methods.push_back(MethodOf(name, calls, figures.seconds));
  return figures;
}

absl::StatusOr<std::string> TopJson(const TopFigures& figures) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string info;
  const auto printed = google::protobuf::util::MessageToJsonString(figures.info, &info, options);
  if (!printed.ok()) return absl::InternalError(StrCat("cannot print as JSON: ", printed.ToString()));
  OrderedJson document = {{"time", absl::FormatTime(figures.at, absl::UTCTimeZone())},
                          {"seconds", figures.seconds},
                          {"server", OrderedJson::parse(info)},
                          {"tokens_per_second", Number(figures.tokens)}};
  OrderedJson& tiers = document["tiers"] = OrderedJson::array();
  for (const TopFigures::Tier& tier : figures.tiers) {
    tiers.push_back({{"name", tier.info.name()},
                     {"stores_per_second", Number(tier.stores)},
                     {"loads_per_second", Number(tier.loads)}});
  }
  document["calls_are_kept"] = figures.traced;
  OrderedJson& methods = document["methods"] = OrderedJson::array();
  for (const TopFigures::Method& method : figures.methods) {
    methods.push_back({{"name", method.name},
                       {"calls_per_second", Number(method.calls)},
                       {"tokens_per_second", Number(method.tokens)},
                       {"rows", method.rows},
                       {"queue_p50_ms", method.queue_p50_ms},
                       {"p50_ms", method.p50_ms},
                       {"p99_ms", method.p99_ms}});
  }
  OrderedJson& sessions = document["sessions"] = OrderedJson::array();
  for (const TopFigures::Session& row : figures.sessions) {
    sessions.push_back({{"name", row.session.name()},
                        {"tokens", row.count},
                        {"tokens_per_second", Number(row.tokens)},
                        {"state_bytes", row.session.state_bytes()},
                        {"tier", v1::StateTier_Name(row.session.tier())}});
  }
  return document.dump(1) + "\n";
}

}  // namespace gdn
