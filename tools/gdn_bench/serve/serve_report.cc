#include "tools/gdn_bench/serve/serve_report.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/gdn_bench/report.h"

namespace gdn::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMicroseconds = 1e6;

const char* SideName(Side side) {
  switch (side) {
    case Side::kGdn:
      return "gdn";
    case Side::kEcho:
      return "echo";
    case Side::kRawEcho:
      return "raw_echo";
    case Side::kGdnBeside:
      return "gdn_beside";
    case Side::kGdnShared:
      return "gdn_shared";
    case Side::kGdnSeveral:
      return "gdn_several";
    case Side::kGdnSecure:
      return "gdn_secure";
    case Side::kEchoSecure:
      return "echo_secure";
    case Side::kGdnSeparate:
      return "gdn_separate";
    case Side::kGdnRing:
      return "gdn_ring";
    case Side::kQueueEcho:
      return "queue_echo";
    case Side::kQueuesEcho:
      return "queues_echo";
    case Side::kWakeEcho:
      return "wake_echo";
  }
  return "";
}

const char* CallName(const Workload& load) {
  if (load.call == CallKind::kStep) return "step";
  return load.call == CallKind::kDecode ? "decode" : "prefill";
}
const char* ApiName(const Workload& load) { return load.api == Api::kUnary ? "unary" : "stream"; }
const char* TransportName(Transport transport) { return transport == Transport::kTcp ? "tcp" : "unix"; }

// Of ours, the measure and the kernels, as the table and the JSON have them.
double UnitOf(RatioKind kind) { return IsRate(kind) ? 1 : kMicroseconds; }

std::string Heading(const ServeReport& report) {
  const ServeOptions& o = report.options;
  std::string heading =
      absl::StrFormat("backend %s (%s), %d layers, hidden size %d, %s, %s", report.backend, report.device,
                      o.load.layers, o.load.hidden, DTypeName(o.load.dtype), TransportName(o.transport));
  if (o.rate > 0) {
    absl::StrAppendFormat(&heading,
                          "; open loop, %g calls/s %s, at most %d in flight, latencies from when a call was due",
                          o.rate, o.arrivals == Arrivals::kEven ? "evenly" : "by Poisson", o.in_flight);
  } else {
    heading += "; closed loop";
  }
  if (o.apart) heading += "; clients and servers on processors of their own";
  return absl::StrCat(heading, "\n", BusyWarning(report.load_average), "\n");
}

// The goals of every row.
std::string GoalTable(const ServeReport& report) {
  std::string table = absl::StrFormat("%-44s %-36s %9s %11s %11s %11s %7s %7s  %s\n", "load", "ratio", "goal", "ours",
                                      "over", "kernels", "median", "min", "met");
  for (const ServeResult& result : report.results) {
    for (const RatioResult& r : result.ratios) {
      const double unit = UnitOf(r.goal.kind);
      const std::string goal =
          r.goal.goal.has_value() ? absl::StrFormat("%s %.2f", IsRate(r.goal.kind) ? ">=" : "<=", *r.goal.goal) : "";
      absl::StrAppendFormat(&table, "%-44s %-36s %9s %11.1f %11.1f %11.1f %7.3f %7.3f  %s\n", result.row.name,
                            RatioName(r.goal.kind), goal, r.ours * unit, r.measure * unit, r.kernels * unit,
                            r.ratio.median, r.ratio.min, goal.empty() ? "" : (r.met ? "yes" : "NO"));
    }
  }
  return table + "\nours, over and kernels: microseconds, or tokens (steps) a second of rates\n";
}

// What each server did, of every row.
std::string SideTable(const ServeReport& report) {
  std::string table =
      absl::StrFormat("%-36s %-10s %8s %10s %10s %10s %10s %10s %11s %11s %6s\n", "load", "server", "calls", "p50 us",
                      "p90 us", "p99 us", "p99.9 us", "max us", "calls/s", "tokens/s", "late");
  for (const ServeResult& result : report.results) {
    for (const auto& [side, s] : result.measured.sides) {
      const auto us = [&latencies = s.latencies](double fraction) {
        return latencies.Percentile(fraction) * kMicroseconds;
      };
      const double calls_per_s = Summarize(s.block_calls_per_s).median;
      absl::StrAppendFormat(&table, "%-36s %-10s %8d %10.1f %10.1f %10.1f %10.1f %10.1f %11.1f %11.1f %6d\n",
                            result.row.name, SideName(side), s.latencies.count(), us(0.5), us(0.9), us(0.99), us(0.999),
                            s.latencies.MaxSeconds() * kMicroseconds, calls_per_s,
                            calls_per_s * result.measured.tokens_per_call, s.late);
    }
  }
  return table;
}

Json SideJson(const SideResult& s, double tokens_per_call) {
  const Summary calls_per_s = Summarize(s.block_calls_per_s);
  Json json = {{"calls", s.latencies.count()}};
  for (const auto& [name, fraction] :
       {std::pair("p50_us", 0.5), {"p90_us", 0.9}, {"p99_us", 0.99}, {"p99_9_us", 0.999}}) {
    json[name] = s.latencies.Percentile(fraction) * kMicroseconds;
  }
  json["max_us"] = s.latencies.MaxSeconds() * kMicroseconds;
  json["calls_per_s"] = SummaryJson(calls_per_s, 1);
  json["tokens_per_s"] = calls_per_s.median * tokens_per_call;
  json["late"] = s.late;
  return json;
}

Json RatioJson(const RatioResult& r) {
  const double unit = UnitOf(r.goal.kind);
  Json ratio = SummaryJson(r.ratio, 1);
  ratio["min"] = r.ratio.min;
  Json json = {{"name", RatioName(r.goal.kind)}, {"unit", IsRate(r.goal.kind) ? "tokens_per_s" : "us"},
               {"ours", r.ours * unit},          {"over", r.measure * unit},
               {"kernels", r.kernels * unit},    {"ratio", std::move(ratio)}};
  if (r.goal.goal.has_value()) {
    json["goal"] = *r.goal.goal;
    json["met"] = r.met;
  }
  return json;
}

Json ResultJson(const ServeResult& result) {
  const Workload& load = result.row.load;
  Json json = {{"name", result.row.name},
               {"call", CallName(load)},
               {"api", ApiName(load)},
               {"sessions", load.rows()},
               {"tokens", load.tokens},
               {"request_ids", load.request_ids},
               {"clients", result.row.clients},
               {"beside_tokens", result.row.beside_tokens},
               {"request_bytes", result.request_bytes},
               {"response_bytes", result.response_bytes}};
  if (load.call == CallKind::kStep) {
    json["rows"] = {{"decodes", load.decodes()},
                    {"drafts", load.drafts},
                    {"draft_tokens", load.draft_tokens},
                    {"prefill_tokens", load.prefill_tokens}};
  }
  if (result.measured.kernels.has_value()) {
    const KernelSeconds& kernels = *result.measured.kernels;
    json["kernels"] = {{"call_us", kernels.call_s * kMicroseconds},
                       {"merged_call_us", kernels.merged_call_s * kMicroseconds},
                       {"segment_us", kernels.segment_s * kMicroseconds}};
  }
  Json sides = Json::object();
  for (const auto& [side, s] : result.measured.sides) {
    sides[SideName(side)] = SideJson(s, result.measured.tokens_per_call);
  }
  json["servers"] = std::move(sides);
  json["ratios"] = Json::array();
  for (const RatioResult& ratio : result.ratios) json["ratios"].push_back(RatioJson(ratio));
  return json;
}

}  // namespace

std::string ServeTable(const ServeReport& report) {
  std::string table = Heading(report) + "\n";
  if (report.options.suite.empty()) table += SideTable(report) + "\n";
  return table + GoalTable(report);
}

Json ServeJson(const ServeReport& report) {
  const ServeOptions& o = report.options;
  Json results = Json::array();
  for (const ServeResult& result : report.results) results.push_back(ResultJson(result));
  return {{"command", "serve"},
          {"suite", o.suite},
          {"backend", {{"name", report.backend}, {"device", report.device}, {"numerics_id", report.numerics_id}}},
          {"load_average", report.load_average},
          {"transport", TransportName(o.transport)},
          {"apart", o.apart},
          {"layers", o.load.layers},
          {"hidden", o.load.hidden},
          {"dtype", std::string(DTypeName(o.load.dtype))},
          {"rate", o.rate},
          {"arrivals", o.arrivals == Arrivals::kEven ? "even" : "poisson"},
          {"in_flight", o.in_flight},
          {"results", std::move(results)}};
}

}  // namespace gdn::bench
