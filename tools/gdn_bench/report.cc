#include "tools/gdn_bench/report.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/dtype.h"
#include "base/status_macros.h"

namespace gdn::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiga = 1e9;
constexpr double kMicro = 1e6;
constexpr double kBusyLoad = 0.5;  // above it a report says that its figures should not be published

const char* MethodName(TimingMethod method) {
  static constexpr const char* kNames[] = {"calls", "launches", "graph"};
  return kNames[static_cast<size_t>(method)];
}

Json DeviceJson(const gpu::DeviceInfo& device) {
  return {{"name", device.name},
          {"architecture", device.architecture},
          {"vendor", device.vendor},
          {"runtime_version", device.runtime_version},
          {"driver_version", device.driver_version},
          {"wave_width", device.wave_width},
          {"processors", device.processors},
          {"clock_khz", device.clock_khz},
          {"memory_clock_khz", device.memory_clock_khz},
          {"memory_bus_bits", device.memory_bus_bits},
          {"total_bytes", device.total_bytes},
          {"l2_bytes", device.l2_bytes}};
}

// The lines above the table.
std::string KernelHeading(const KernelReport& report) {
  std::string heading = absl::StrFormat("backend %s, %s, ", report.backend.name, report.backend.device);
  if (report.device.has_value()) {
    const gpu::DeviceInfo& d = *report.device;
    absl::StrAppendFormat(
        &heading,
        "numerics %s\n%s runtime %d, driver %d; %d processors, waves of %d, at most %d MHz; memory at "
        "most %d MHz on %d bits, %.1f GiB\n",
        report.backend.numerics_id, d.vendor, d.runtime_version, d.driver_version, d.processors, d.wave_width,
        d.clock_khz / 1000, d.memory_clock_khz / 1000, d.memory_bus_bits,
        static_cast<double>(d.total_bytes) / (1 << 30));
  } else {
    absl::StrAppendFormat(&heading, "%d threads, numerics %s\n", report.backend.threads, report.backend.numerics_id);
  }
  absl::StrAppendFormat(&heading,
                        "last-level cache %.0f MiB; %d rounds a case, medians; limits re-measured in every round\n\n",
                        static_cast<double>(report.last_level_cache_bytes) / (1 << 20), report.options.measure.repeat);
  const std::string warning = BusyWarning(report.load_average);
  return warning.empty() ? heading : heading + warning + "\n";
}

Json LimitsJson(const CaseResult& c) {
  return {{"read_gb_s", SummaryJson(c.read_bytes_per_s, 1 / kGiga)},
          {"copy_gb_s", SummaryJson(c.copy_bytes_per_s, 1 / kGiga)},
          {"update_gb_s", SummaryJson(c.update_bytes_per_s, 1 / kGiga)},
          {"fma_gflop_s", SummaryJson(c.flops_per_s, 1 / kGiga)}};
}

Json CaseJson(const CaseResult& c) {
  const double bytes = c.cost.bytes_read + c.cost.bytes_written;
  Json json = {{"name", c.name}, {"timed_by", MethodName(c.method)}, {"time_us", SummaryJson(c.step_s, kMicro)}};
  if (c.method != TimingMethod::kCalls) json["launch_us"] = SummaryJson(c.launch_s, kMicro);
  json.update(Json{{"limit_us", SummaryJson(c.limit_s, kMicro)},
                   {"fraction_of_limit", SummaryJson(c.fraction_of_limit, 1)},
                   {"bound", c.memory_bound ? "memory" : "arithmetic"},
                   {"cold", c.cold},
                   {"tokens", c.cost.tokens},
                   {"tokens_per_s", static_cast<double>(c.cost.tokens) / c.step_s.median},
                   {"bytes_read", c.cost.bytes_read},
                   {"bytes_written", c.cost.bytes_written},
                   {"flops", c.cost.flops},
                   {"gb_s", bytes / c.step_s.median / kGiga},
                   {"gflop_s", c.cost.flops / c.step_s.median / kGiga},
                   {"working_set_bytes", c.working_set_bytes},
                   {"steps_per_round", c.steps_per_round},
                   {"limits", LimitsJson(c)}});
  return json;
}

Json LatencyJson(const Latencies& latencies) {
  return {{"p50_us", latencies.p50_s * kMicro}, {"p99_us", latencies.p99_s * kMicro}};
}

}  // namespace

Json SummaryJson(const Summary& s, double unit) {
  return {{"median", s.median * unit}, {"p10", s.p10 * unit}, {"p90", s.p90 * unit}, {"count", s.count}};
}

std::string BusyWarning(double load_average) {
  if (load_average <= kBusyLoad) return "";
  return absl::StrFormat(
      "load average %.1f at start: other programs share the processors, do not publish these figures\n", load_average);
}

std::string KernelTable(const KernelReport& report) {
  std::string table = KernelHeading(report);
  const bool launches = report.device.has_value();  // have a column of their own
  absl::StrAppendFormat(&table, "%-38s %11s %23s%s %9s %9s %11s %-10s %8s %15s\n", "case", "time us", "p10 .. p90",
                        launches ? "   launch us" : "", "GB/s", "GFLOP/s", "tokens/s", "bound", "of limit",
                        "p10 .. p90");
  bool any_warm = false;
  for (const CaseResult& c : report.cases) {
    const bool warm = c.memory_bound && !c.cold;
    any_warm |= warm;
    absl::StrAppendFormat(&table, "%-38s %11.1f %10.1f .. %9.1f%s %9.2f %9.2f %11.0f %-10s %8.2f %6.2f .. %5.2f%s\n",
                          c.name, c.step_s.median * kMicro, c.step_s.p10 * kMicro, c.step_s.p90 * kMicro,
                          launches ? absl::StrFormat(" %11.1f", c.launch_s.median * kMicro) : "",
                          (c.cost.bytes_read + c.cost.bytes_written) / c.step_s.median / kGiga,
                          c.cost.flops / c.step_s.median / kGiga, static_cast<double>(c.cost.tokens) / c.step_s.median,
                          c.memory_bound ? "memory" : "arithmetic", c.fraction_of_limit.median, c.fraction_of_limit.p10,
                          c.fraction_of_limit.p90, warm ? " *" : "");
  }
  if (any_warm)
    absl::StrAppend(&table, "* working set below 4 last-level caches: part of it may have come from a cache\n");
  if (!report.cases.empty()) {
    const CaseResult& c = report.cases.back();
    if (launches) {
      absl::StrAppendFormat(&table, "time: %s, by events; launch: the same work launched anew, by the host's clock\n",
                            c.method == TimingMethod::kGraph ? "a recorded graph, replayed" : "launches");
    }
    absl::StrAppendFormat(
        &table, "\nlimits beside %s: read %.1f GB/s, copy %.1f GB/s, update in place %.1f GB/s, %.1f GFLOP/s\n", c.name,
        c.read_bytes_per_s.median / kGiga, c.copy_bytes_per_s.median / kGiga, c.update_bytes_per_s.median / kGiga,
        c.flops_per_s.median / kGiga);
  }
  return table;
}

Json KernelJson(const KernelReport& report) {
  Json cases = Json::array();
  for (const CaseResult& c : report.cases) cases.push_back(CaseJson(c));
  Json json = {{"command", "kernel"},
               {"backend",
                {{"name", report.backend.name},
                 {"device", report.backend.device},
                 {"numerics_id", report.backend.numerics_id},
                 {"threads", report.backend.threads}}}};
  if (report.device.has_value()) json["gpu"] = DeviceJson(*report.device);
  json.update(Json{{"last_level_cache_bytes", report.last_level_cache_bytes},
                   {"load_average", report.load_average},
                   {"repeat", report.options.measure.repeat},
                   {"min_time_s", report.options.measure.min_time_s},
                   {"cases", std::move(cases)}});
  return json;
}

std::string StateTable(const StateReport& report) {
  std::string table = absl::StrFormat(
      "a session of %d layers, %.1f MB of states on the device; medians of rounds that alternate with their measure\n",
      report.options.layers, static_cast<double>(report.state_bytes) / 1e6);
  table += BusyWarning(report.load_average);
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
                          r.checkpoints, r.checkpoint_s * 1e3, r.with.calls, r.with.p50_s * kMicro,
                          r.with.p99_s * kMicro, r.without.p50_s * kMicro, r.without.p99_s * kMicro,
                          r.with.p50_s / r.without.p50_s, r.with.p99_s / r.without.p99_s);
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
                      {"calls", r.with.calls},
                      {"with", LatencyJson(r.with)},
                      {"without", LatencyJson(r.without)},
                      {"ratio", {{"p50", r.with.p50_s / r.without.p50_s}, {"p99", r.with.p99_s / r.without.p99_s}}}});
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

absl::Status WriteJson(const Json& json, OutputFile* file) {
  const std::string text = json.dump(2) + "\n";
  if (file == nullptr) {
    std::fputs(text.c_str(), stdout);
    return absl::OkStatus();
  }
  GDN_RETURN_IF_ERROR(file->Append(text));
  return file->Commit();
}

}  // namespace gdn::bench
