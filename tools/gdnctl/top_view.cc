#include "tools/gdnctl/top_view.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "tools/gdnctl/print.h"

namespace gdn {
namespace {

// Layers of a sequence may be apart by a step.
int64_t Tokens(const v1::Session& session) {
  int64_t tokens = 0;
  for (const v1::LayerState& layer : session.layers()) tokens = std::max<int64_t>(tokens, layer.token_count());
  return tokens;
}

// "device", "host", ..
std::string PlaceOf(const v1::Session& session) {
  std::string name = absl::AsciiStrToLower(v1::StateTier_Name(session.tier()));
  return absl::StartsWith(name, "state_tier_") ? name.substr(sizeof("state_tier_") - 1) : name;
}

// Of a count that grew by so much between the samples.
std::string Rate(double grown, double seconds) {
  return seconds > 0 ? absl::StrFormat("%.1f", std::max(grown, 0.0) / seconds) : "-";
}

std::string Percent(int64_t used, int64_t limit) {
  return limit > 0 ? absl::StrFormat("%.0f%%", 100.0 * static_cast<double>(used) / static_cast<double>(limit)) : "-";
}

double Percentile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

int64_t BeginNs(const v1::CallTrace& call) {
  return call.begin_time().seconds() * 1'000'000'000 + call.begin_time().nanos();
}

class View {
 public:
  View(const TopSample& before, const TopSample& now)
      : before_(before), now_(now), seconds_(absl::ToDoubleSeconds(now.at - before.at)) {}

  void AddServer() {
    const v1::GetServerInfoResponse& info = now_.info;
    Line(absl::StrFormat("gdn_server %s  %s  %s", info.version(), info.backend(), info.device()));
    Line(absl::StrFormat(
        "%d sessions of all callers, %s of %s of state; %d checkpoints (%d failed); %s of stored replies",
        info.session_count(), FormatBytes(info.state_bytes_used()), FormatBytes(info.limits().state_bytes()),
        info.checkpoints(), info.checkpoint_failures(), FormatBytes(info.stored_reply_bytes())));
    Line("");
  }

  void AddTiers() {
    Line(absl::StrFormat("%-8s %9s %12s %12s %6s %10s %10s %9s", "TIER", "SESSIONS", "USED", "LIMIT", "FULL", "IN/S",
                         "OUT/S", "FAILURES"));
    for (const v1::TierInfo& tier : now_.info.tiers()) {
      const v1::TierInfo* const was = EarlierTier(tier.name());
      Line(absl::StrFormat("%-8s %9d %12s %12s %6s %10s %10s %9d%s", tier.name(), tier.sessions(),
                           FormatBytes(tier.used_bytes()),
                           tier.limit_bytes() > 0 ? FormatBytes(tier.limit_bytes()) : "-",
                           Percent(tier.used_bytes(), tier.limit_bytes()),
                           Rate(static_cast<double>(tier.stores() - (was ? was->stores() : 0)), seconds_),
                           Rate(static_cast<double>(tier.loads() - (was ? was->loads() : 0)), seconds_),
                           tier.failures(), tier.problem().empty() ? "" : StrCat("  ", tier.problem())));
    }
    Line("");
  }

  void AddSteps() {
    if (now_.traced.kept() == 0) {
      Line("STEPS    the server keeps no calls; 'gdnctl trace --keep=1000' turns it on");
      Line("");
      return;
    }
    Line(absl::StrFormat("%-14s %9s %10s %7s %10s %10s %10s", "STEPS", "CALLS/S", "TOKENS/S", "ROWS", "QUEUE p50",
                         "p50 ms", "p99 ms"));
    std::map<std::string, std::vector<const v1::CallTrace*>> methods;
    const int64_t begin = absl::ToUnixNanos(before_.at);
    for (const v1::CallTrace& call : now_.traced.calls()) {
      if (BeginNs(call) >= begin) methods[call.method()].push_back(&call);
    }
    for (const auto& [method, calls] : methods) AddMethod(method, calls);
    if (methods.empty()) Line("none of the caller's");
    Line("");
  }

  void AddSessions(int rows) {
    Line(absl::StrFormat("%-40s %10s %10s %10s %-8s", "SESSION", "TOKENS", "TOKENS/S", "STATE", "PLACE"));
    std::map<std::string, int64_t> earlier;
    for (const v1::Session& session : before_.sessions) earlier[session.name()] = Tokens(session);
    struct Row {
      const v1::Session* session;
      int64_t tokens, grown;
    };
    std::vector<Row> busiest;
    for (const v1::Session& session : now_.sessions) {
      const int64_t tokens = Tokens(session);
      const auto was = earlier.find(session.name());
      busiest.push_back({&session, tokens, was == earlier.end() ? tokens : tokens - was->second});
    }
    std::stable_sort(busiest.begin(), busiest.end(), [](const Row& a, const Row& b) {
      return std::pair(a.grown, a.tokens) > std::pair(b.grown, b.tokens);
    });
    const size_t shown = std::min(busiest.size(), static_cast<size_t>(std::max(rows, 1)));
    for (size_t i = 0; i < shown; ++i) {
      const Row& row = busiest[i];
      Line(absl::StrFormat("%-40s %10d %10s %10s %-8s", row.session->name(), row.tokens,
                           Rate(static_cast<double>(row.grown), seconds_), FormatBytes(row.session->state_bytes()),
                           PlaceOf(*row.session)));
    }
    if (shown < busiest.size()) Line(absl::StrFormat("and %d more of the caller's", busiest.size() - shown));
    if (busiest.empty()) Line("none of the caller's");
  }

  int lines() const { return static_cast<int>(lines_.size()); }
  std::string Text(const TopViewOptions& options) const {
    std::string text;
    for (const std::string& line : lines_) StrAppend(&text, line.substr(0, static_cast<size_t>(options.columns)), "\n");
    return text;
  }

 private:
  void Line(std::string text) { lines_.push_back(std::move(text)); }

  const v1::TierInfo* EarlierTier(const std::string& name) const {
    const auto& tiers = before_.info.tiers();
    const auto was = std::find_if(tiers.begin(), tiers.end(), [&](const auto& tier) { return tier.name() == name; });
    return was == tiers.end() ? nullptr : &*was;
  }

  void AddMethod(const std::string& method, const std::vector<const v1::CallTrace*>& calls) {
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
    Line(absl::StrFormat("%-14s %9s %10s %7.1f %10.3f %10.3f %10.3f", method,
                         Rate(static_cast<double>(calls.size()), seconds_), Rate(tokens, seconds_),
                         rows / static_cast<double>(calls.size()), Percentile(queued, 0.5), Percentile(taken, 0.5),
                         Percentile(taken, 0.99)));
  }

  const TopSample& before_;
  const TopSample& now_;
  const double seconds_;
  std::vector<std::string> lines_;
};

}  // namespace

absl::StatusOr<TopSample> TakeTopSample(Client& client) {
  TopSample sample;
  sample.at = absl::Now();
  GDN_ASSIGN_OR_RETURN(sample.info, client.GetServerInfo());
  GDN_ASSIGN_OR_RETURN(sample.sessions, client.ListSessions());
  absl::StatusOr<v1::TraceCallsResponse> traced = client.TraceCalls(v1::TraceCallsRequest());
  if (!traced.ok() && !absl::IsUnimplemented(traced.status())) return traced.status();
  if (traced.ok()) sample.traced = *std::move(traced);
  return sample;
}

std::string TopView(const TopSample& before, const TopSample& now, const TopViewOptions& options) {
  View view(before, now);
  view.AddServer();
  view.AddTiers();
  view.AddSteps();
  view.AddSessions(options.rows - view.lines() - 3);  // its head, what is left out, the prompt's line
  return view.Text(options);
}

}  // namespace gdn
