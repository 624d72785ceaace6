#include "tools/gdnctl/top/top_view.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/string_cat.h"
#include "tools/gdnctl/print.h"

namespace gdn {
namespace {

constexpr size_t kMostBars = 60;
constexpr std::string_view kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::string_view kAsciiBars[] = {"_", ".", "-", "="};

constexpr std::string_view kHeading = "\x1b[1m";   // bold
constexpr std::string_view kWarning = "\x1b[33m";  // yellow
constexpr std::string_view kBad = "\x1b[31m";      // red
constexpr std::string_view kPlain = "";
constexpr std::string_view kEnd = "\x1b[0m";

std::string Shown(const std::optional<double>& rate) { return rate.has_value() ? absl::StrFormat("%.1f", *rate) : "-"; }

std::string Percent(int64_t used, int64_t limit) {
  return limit > 0 ? absl::StrFormat("%.0f%%", 100.0 * static_cast<double>(used) / static_cast<double>(limit)) : "-";
}

class View {
 public:
  View(const TopFigures& figures, const TopViewOptions& options) : figures_(figures), options_(options) {}

  void AddServer(absl::Span<const double> history) {
    const v1::GetServerInfoResponse& info = figures_.info;
    Line(kHeading, absl::StrFormat("gdn_server %s  %s  %s", info.version(), info.backend(), info.device()));
    Line(kPlain,
         absl::StrFormat(
             "%d sessions of all callers, %s of %s of state; %d checkpoints (%d failed); %s of stored replies",
             info.session_count(), FormatBytes(info.state_bytes_used()), FormatBytes(info.limits().state_bytes()),
             info.checkpoints(), info.checkpoint_failures(), FormatBytes(info.stored_reply_bytes())));
    std::string tokens = absl::StrFormat("your tokens a second: %s", Shown(figures_.tokens));
    const auto left = static_cast<size_t>(std::max(options_.columns - static_cast<int>(tokens.size()) - 2, 0));
    const size_t bars = std::min({history.size(), left, kMostBars});
    if (bars > 1) StrAppend(&tokens, "  ", Sparkline(history.last(bars), options_.utf8));
    lines_.push_back({kPlain, std::move(tokens), /*fits=*/true});
    Line(kPlain, "");
  }

  void AddTiers() {
    Line(kHeading, absl::StrFormat("%-7s %8s %10s %10s %5s %8s %8s %8s", "TIER", "SESSIONS", "USED", "LIMIT", "FULL",
                                   "IN/S", "OUT/S", "FAILURES"));
    for (const TopFigures::Tier& row : figures_.tiers) {
      const v1::TierInfo& tier = row.info;
      const bool full = tier.limit_bytes() > 0 && tier.used_bytes() >= tier.limit_bytes() / 10 * 9;
      const bool failed = tier.failures() > 0 || !tier.problem().empty();
      Line(failed ? kBad
           : full ? kWarning
                  : kPlain,
           absl::StrFormat(
               "%-7s %8d %10s %10s %5s %8s %8s %8d", tier.name(), tier.sessions(), FormatBytes(tier.used_bytes()),
               tier.limit_bytes() > 0 ? FormatBytes(tier.limit_bytes()) : "-",
               Percent(tier.used_bytes(), tier.limit_bytes()), Shown(row.stores), Shown(row.loads), tier.failures()));
      if (!tier.problem().empty()) Line(kBad, StrCat("        ", tier.problem()));
    }
    Line(kPlain, "");
  }

  void AddSteps() {
    if (!figures_.traced) {
      Line(kPlain, "STEPS   the server keeps no calls; 'gdnctl trace --keep=1000' turns it on");
      Line(kPlain, "");
      return;
    }
    Line(kHeading, absl::StrFormat("%-14s %9s %10s %6s %10s %9s %9s", "STEPS", "CALLS/S", "TOKENS/S", "ROWS",
                                   "QUEUE p50", "p50 ms", "p99 ms"));
    for (const TopFigures::Method& row : figures_.methods) {
      Line(kPlain, absl::StrFormat("%-14s %9s %10s %6.1f %10.3f %9.3f %9.3f", row.name, Shown(row.calls),
                                   Shown(row.tokens), row.rows, row.queue_p50_ms, row.p50_ms, row.p99_ms));
    }
    if (figures_.methods.empty()) Line(kPlain, "none of the caller's");
    Line(kPlain, "");
  }

  void AddSessions(int rows) {
    const int name = std::clamp(options_.columns - 44, 20, 60);
    Line(kHeading,
         absl::StrFormat("%-*s %10s %10s %10s  %-8s", name, "SESSION", "TOKENS", "TOKENS/S", "STATE", "TIER"));
    const size_t shown = std::min(figures_.sessions.size(), static_cast<size_t>(std::max(rows, 1)));
    for (size_t i = 0; i < shown; ++i) {
      const TopFigures::Session& row = figures_.sessions[i];
      Line(kPlain,
           absl::StrFormat("%-*s %10d %10s %10s  %-8s", name, row.session.name().substr(0, static_cast<size_t>(name)),
                           row.count, Shown(row.tokens), FormatBytes(row.session.state_bytes()),
                           FormatTier(row.session.tier())));
    }
    if (shown < figures_.sessions.size()) {
      Line(kPlain, absl::StrFormat("and %d more of the caller's", figures_.sessions.size() - shown));
    }
    if (figures_.sessions.empty()) Line(kPlain, "none of the caller's");
  }

  int lines() const { return static_cast<int>(lines_.size()); }

  std::string Text() const {
    std::string text;
    for (const auto& [style, line, fits] : lines_) {
      const std::string cut = fits ? line : line.substr(0, static_cast<size_t>(options_.columns));
      const bool styled = options_.colours && !style.empty();
      StrAppend(&text, styled ? style : "", cut, styled ? kEnd : "", "\n");
    }
    return text;
  }

 private:
  struct StyledLine {
    std::string_view style;
    std::string text;
    bool fits = false;  // has characters of several bytes, and is short enough
  };

  void Line(std::string_view style, std::string text) { lines_.push_back({style, std::move(text)}); }

  const TopFigures& figures_;
  const TopViewOptions& options_;
  std::vector<StyledLine> lines_;
};

}  // namespace

std::string Sparkline(absl::Span<const double> values, bool utf8) {
  const absl::Span<const std::string_view> bars =
      utf8 ? absl::Span<const std::string_view>(kBars) : absl::Span<const std::string_view>(kAsciiBars);
  const double most = values.empty() ? 0 : *std::max_element(values.begin(), values.end());
  std::string line;
  for (const double value : values) {
    const double part = most > 0 ? value / most : 0;
    const auto height = static_cast<size_t>(std::lround(part * static_cast<double>(bars.size() - 1)));
    line += bars[std::min(height, bars.size() - 1)];
  }
  return line;
}

std::string TopView(const TopFigures& figures, absl::Span<const double> history, const TopViewOptions& options) {
  View view(figures, options);
  view.AddServer(history);
  view.AddTiers();
  view.AddSteps();
  view.AddSessions(options.rows - view.lines() - 3);  // its head, the number left out, the prompt's line
  return view.Text();
}

}  // namespace gdn
