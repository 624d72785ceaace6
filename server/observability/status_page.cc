#include "server/observability/status_page.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/string_cat.h"
#include "server/observability/html.h"
#include "server/observability/plot.h"
#include "server/observability/status_style.h"

namespace gdn {
namespace {

constexpr size_t kMostNameCharacters = 80;

// The stages of a call, in order. Each has a colour of its own.
constexpr std::array kStages = {"parse",   "admit",    "queue",  "copy_in", "launch",
                                "compute", "copy_out", "commit", "reply"};

size_t ColourOf(std::string_view stage) {
  return static_cast<size_t>(std::find(kStages.begin(), kStages.end(), stage) - kStages.begin());
}

int Percent(double part) { return static_cast<int>(std::lround(100 * std::clamp(part, 0.0, 1.0))); }

std::string Fact(std::string_view name, std::string_view value) {
  return StrCat("<div><dt>", EscapeHtml(name), "</dt><dd>", EscapeHtml(value), "</dd></div>");
}

std::string Heading(const StatusPage& page) {
  std::string listen;
  for (const std::string& address : page.addresses) StrAppend(&listen, listen.empty() ? "" : ", ", address);
  const bool ready = page.trouble.empty();
  return StrCat(
      "<header><h1>gdn_server</h1><p class=\"state ", ready ? "good" : "bad", "\" role=\"status\">",
      ready ? "ready" : StrCat("not ready: ", EscapeHtml(page.trouble)), "</p><p class=\"when\"><span class=\"time\">",
      EscapeHtml(absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", page.now, absl::UTCTimeZone())),
      "</span> · <a href=\"statusz\">refresh</a><label class=\"hold\" hidden> · <input type=\"checkbox\" id=\"hold\"> "
      "hold</label></p></header><main><section aria-label=\"What runs\"><dl>",
      Fact("version", page.version), Fact("backend", page.backend), Fact("device", page.device),
      Fact("up", ShowDuration(page.uptime)), Fact("sessions", ShowNumber(static_cast<double>(page.sessions))),
      Fact("steps that wait", ShowNumber(static_cast<double>(page.waiting_steps))), Fact("listens on", listen),
      Fact("numerics_id", page.numerics_id), "</dl></section>");
}

std::string Models(const StatusPage& page) {
  if (page.models.empty()) return "";
  std::string rows;
  for (const StatusPage::Model& model : page.models) {
    StrAppend(&rows, "<tr><th scope=\"row\">", EscapeHtml(model.name, kMostNameCharacters), "</th><td>",
              EscapeHtml(model.family), "</td><td class=\"n\">", model.layers, "</td><td>", EscapeHtml(model.weights),
              "</td><td>", EscapeHtml(model.dims), "</td></tr>");
  }
  return StrCat(
      "<section><h2>Models</h2><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Models\">"
      "<table><thead><tr><th>name</th><th>family</th><th class=\"n\">layers</th><th>weights</th>"
      "<th>dimensions</th></tr></thead><tbody>",
      rows, "</tbody></table></div></section>");
}

std::string Bar(double part, std::string_view spoken) {
  const int percent = Percent(part);
  return StrCat("<div class=\"bar", percent >= 90 ? " full" : "", "\" role=\"img\" aria-label=\"", EscapeHtml(spoken),
                "\"><i style=\"width:", percent, "%\"></i></div>");
}

std::string PrefixLine(const StatusPage::Prefixes& prefixes) {
  if (!prefixes.on) return "";
  const auto number = [](int64_t value) { return ShowNumber(static_cast<double>(value)); };
  return StrCat("<p><small>", number(prefixes.entries), " prefixes of prompts in host memory, ",
                ShowBytes(prefixes.used_bytes), " of ", ShowBytes(prefixes.limit_bytes), "; ", number(prefixes.hits),
                " of ", number(prefixes.hits + prefixes.misses),
                " sessions that asked for a prefix started from one, and ", number(prefixes.tokens_skipped),
                " tokens were skipped</small></p>");
}

std::string Tiers(const StatusPage& page) {
  std::string tiers;
  for (const StatusPage::Tier& tier : page.tiers) {
    const double part =
        tier.limit_bytes > 0 ? static_cast<double>(tier.used_bytes) / static_cast<double>(tier.limit_bytes) : 0;
    const std::string used = tier.limit_bytes > 0 ? StrCat(ShowBytes(tier.used_bytes), " of ",
                                                           ShowBytes(tier.limit_bytes), " · ", Percent(part), " %")
                                                  : StrCat(ShowBytes(tier.used_bytes), ", no limit");
    StrAppend(&tiers, "<li><p><b>", EscapeHtml(tier.name), "</b><span>", used, "</span></p>",
              Bar(part, StrCat(tier.name, ": ", used)), "<p><small>", ShowNumber(static_cast<double>(tier.sessions)),
              tier.sessions == 1 ? " session" : " sessions", "</small></p>");
    if (!tier.note.empty()) StrAppend(&tiers, "<p><small>", EscapeHtml(tier.note), "</small></p>");
    if (!tier.problem.empty()) StrAppend(&tiers, "<p class=\"problem\">", EscapeHtml(tier.problem), "</p>");
    tiers += "</li>";
  }
  return StrCat("<section><h2>Where states are</h2><ul class=\"tiers\">", tiers, "</ul>", PrefixLine(page.prefixes),
                "</section>");
}

template <typename Value>
Plot::Series SeriesOf(std::string name, const StatusPage& page, Value StatusSecond::*value) {
  Plot::Series series{.name = std::move(name), .values = {}};
  for (const StatusSecond& second : page.seconds) series.values.emplace_back(second.*value);
  return series;
}

std::string Plots(const StatusPage& page) {
  return StrCat("<section><h2>The last minutes</h2><div class=\"plots\">",
                RenderPlot({.title = "Tokens",
                            .unit = "per second",
                            .series = {SeriesOf("decode", page, &StatusSecond::decode_tokens),
                                       SeriesOf("prefill", page, &StatusSecond::prefill_tokens)}}),
                RenderPlot({.title = "Decode latency",
                            .unit = "ms",
                            .series = {SeriesOf("p50", page, &StatusSecond::decode_p50_ms),
                                       SeriesOf("p99", page, &StatusSecond::decode_p99_ms)},
                            .by_decades = true}),
                RenderPlot({.title = "Rows of a decode launch",
                            .unit = "mean",
                            .series = {SeriesOf("rows", page, &StatusSecond::rows_per_launch)}}),
                RenderPlot({.title = "Waiting and failing",
                            .unit = "steps, errors per second",
                            .series = {SeriesOf("steps that wait", page, &StatusSecond::waiting_steps),
                                       SeriesOf("errors", page, &StatusSecond::errors)}}),
                "</div></section>");
}

std::string StageBar(const StatusPage::Call& call) {
  const double whole = std::max(absl::ToDoubleSeconds(call.duration), 1e-9);
  std::string bar, told;
  for (const auto& [name, took] : call.stages) {
    const double part = absl::ToDoubleSeconds(took) / whole;
    const std::string text = StrCat(name, " ", ShowDuration(took));
    StrAppend(&bar, "<i class=\"s", ColourOf(name), "\" style=\"flex-grow:", std::lround(1000 * part), "\" title=\"",
              EscapeHtml(text), "\"></i>");
    if (part >= 0.01) {
      StrAppend(&told, "<span class=\"key\"><i class=\"s", ColourOf(name), "\"></i>", EscapeHtml(text), "</span>");
    }
  }
  return StrCat("<div class=\"stages\" aria-hidden=\"true\">", bar, "</div><p class=\"keys\">", told, "</p>");
}

std::string CallOf(const StatusPage::Call& call) {
  std::string what =
      StrCat(EscapeHtml(call.method), " <code>", EscapeHtml(call.session, kMostNameCharacters), "</code>");
  if (call.rows > 1) StrAppend(&what, " and ", call.rows - 1, " more");
  std::string more = StrCat("layer ", call.layer, " · ", call.tokens, call.tokens == 1 ? " token" : " tokens", " · ",
                            absl::FormatTime("%H:%M:%S", call.when, absl::UTCTimeZone()));
  if (!call.principal.empty()) StrAppend(&more, " · by ", EscapeHtml(call.principal, kMostNameCharacters));
  if (!call.trace_id.empty()) StrAppend(&more, " · trace <code>", EscapeHtml(call.trace_id), "</code>");
  return StrCat("<li><p class=\"call\"><b>", ShowDuration(call.duration), "</b><span>", what,
                call.status.empty() ? "" : StrCat(" <em>", EscapeHtml(call.status), "</em>"), "</span></p>",
                StageBar(call), "<p><small>", more, "</small></p></li>");
}

std::string Calls(const StatusPage& page) {
  std::string calls;
  for (const StatusPage::Call& call : page.calls) calls += CallOf(call);
  if (!page.traces) {
    calls =
        "<p class=\"hint\">No call is traced. Start the server with <code>--trace-calls=1000</code>, or turn tracing "
        "on "
        "with <code>gdnctl trace --keep 1000</code>.</p>";
  } else if (calls.empty()) {
    calls = "<p class=\"hint\">No traced call has ended yet.</p>";
  } else {
    calls = StrCat("<ol class=\"calls\">", calls, "</ol>");
  }
  return StrCat("<section><h2>The slowest of the traced calls</h2>", calls, "</section>");
}

std::string Holders(const StatusPage& page) {
  std::string rows;
  for (const StatusPage::Holder& holder : page.holders) {
    StrAppend(
        &rows, "<tr><th scope=\"row\">", EscapeHtml(holder.name, kMostNameCharacters), "</th><td class=\"n\">",
        ShowNumber(holder.weight), "</td><td class=\"n\">", ShowBytes(holder.state_bytes), "</td><td class=\"n\">",
        ShowBytes(holder.device_bytes), "</td><td class=\"n\">",
        Percent(holder.device_shares / 100) == 100 ? "> 100" : ShowNumber(std::round(100 * holder.device_shares) / 100),
        "</td><td class=\"n\">", ShowBytes(holder.call_bytes), "</td></tr>");
  }
  const std::string more =
      page.more_holders > 0 ? StrCat("<p class=\"hint\">and ", page.more_holders, " more</p>") : std::string();
  if (rows.empty()) return "<section><h2>Who holds what</h2><p class=\"hint\">Nobody holds anything.</p></section>";
  return StrCat(
      "<section><h2>Who holds what</h2><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Who holds "
      "what\"><table><thead><tr><th>caller</th><th class=\"n\">weight</th><th class=\"n\">states</th><th "
      "class=\"n\">on the "
      "device</th><th class=\"n\">shares of it held</th><th class=\"n\">calls</th></tr></thead><tbody>",
      rows, "</tbody></table></div>", more, "</section>");
}

}  // namespace

std::string RenderStatusPage(const StatusPage& page) {
  return StrCat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<meta name=\"color-scheme\" content=\"light dark\"><title>gdn_server · ",
      page.trouble.empty() ? "ready" : "not ready", "</title><style>", kStatusStyle, "</style></head><body>",
      Heading(page), Tiers(page), Plots(page), Calls(page), Holders(page), Models(page),
      "</main><script src=\"statusz.js\"></script></body></html>\n");
}

}  // namespace gdn
