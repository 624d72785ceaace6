// The table and the JSON of `gdn_bench state`.
#include "absl/strings/str_format.h"
#include "tools/gdn_bench/report.h"

namespace gdn::bench {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::string StateTable(const StateReport& report) {
  std::string table = absl::StrFormat(
      "a session of %d layers, %.1f MB of states on the device; medians of rounds that alternate with their measure\n",
      report.options.layers, static_cast<double>(report.state_bytes) / 1e6);
  if (report.load_average > kBusyLoad) {
    absl::StrAppendFormat(
        &table, "load average %.1f at start: other programs share the processors, figures are not to be kept\n",
        report.load_average);
  }
  absl::StrAppendFormat(&table, "\n%-14s %10s %10s   %-12s %10s %8s %16s\n", "move", "MB", "GB/s", "beside", "GB/s",
                        "ratio", "p10 .. p90");
  for (const RateResult& r : report.rates) {
    absl::StrAppendFormat(&table, "%-14s %10.1f %10.2f   %-12s %10.2f %8.2f %7.2f .. %5.2f\n", r.name,
                          static_cast<double>(r.bytes) / 1e6, r.bytes_per_s.median / kGiga, r.measure,
                          r.measure_bytes_per_s.median / kGiga, r.ratio.median, r.ratio.p10, r.ratio.p90);
  }
  absl::StrAppendFormat(&table, "\n%-14s %8s %12s %12s %8s %16s\n", "fork", "layers", "us", "1 layer us", "ratio",
                        "p10 .. p90");
  for (const ForkResult& r : report.forks) {
    absl::StrAppendFormat(&table, "%-14s %8d %12.1f %12.1f %8.2f %7.2f .. %5.2f\n", r.name, r.layers,
                          r.many_s.median * kMicro, r.one_s.median * kMicro, r.ratio.median, r.ratio.p10, r.ratio.p90);
  }
  absl::StrAppendFormat(&table, "\n%-14s %12s %8s %8s %10s %10s %14s %14s %8s %8s\n", "a neighbour's", "checkpoints",
                        "ms each", "calls", "p50 us", "p99 us", "without: p50", "p99", "p50 x", "p99 x");
  for (const PauseResult& r : report.pauses) {
    absl::StrAppendFormat(&table, "%-14s %12d %8.1f %8d %10.1f %10.1f %14.1f %14.1f %8.2f %8.2f\n", r.name,
                          r.checkpoints, r.checkpoint_s * 1e3, r.calls, r.p50_s * kMicro, r.p99_s * kMicro,
                          r.plain_p50_s * kMicro, r.plain_p99_s * kMicro, r.p50_ratio, r.p99_ratio);
  }
  return table;
}

Json StateJson(const StateReport& report) {
  const StateBenchOptions& o = report.options;
  Json rates = Json::array();
  for (const RateResult& r : report.rates) {
    rates.push_back({{"name", r.name},
                     {"measure", r.measure},
                     {"bytes", r.bytes},
                     {"gb_s", SummaryJson(r.bytes_per_s, 1 / kGiga)},
                     {"measure_gb_s", SummaryJson(r.measure_bytes_per_s, 1 / kGiga)},
                     {"ratio", SummaryJson(r.ratio, 1)}});
  }
  Json forks = Json::array();
  for (const ForkResult& r : report.forks) {
    forks.push_back({{"name", r.name},
                     {"layers", r.layers},
                     {"time_us", SummaryJson(r.many_s, kMicro)},
                     {"one_layer_us", SummaryJson(r.one_s, kMicro)},
                     {"ratio", SummaryJson(r.ratio, 1)}});
  }
  Json pauses = Json::array();
  for (const PauseResult& r : report.pauses) {
    pauses.push_back({{"name", r.name},
                      {"checkpoints", r.checkpoints},
                      {"checkpoint_ms", r.checkpoint_s * 1e3},
                      {"calls", r.calls},
                      {"with", {{"p50_us", r.p50_s * kMicro}, {"p99_us", r.p99_s * kMicro}}},
                      {"without", {{"p50_us", r.plain_p50_s * kMicro}, {"p99_us", r.plain_p99_s * kMicro}}},
                      {"ratio", {{"p50", r.p50_ratio}, {"p99", r.p99_ratio}}}});
  }
  return {{"command", "state"},
          {"layers", o.layers},
          {"state_bytes", report.state_bytes},
          {"load_average", report.load_average},
          {"repeat", o.repeat},
          {"rates", std::move(rates)},
          {"forks", std::move(forks)},
          {"pauses", std::move(pauses)}};
}

}  // namespace gdn::bench
