#include "tools/gdn_bench/schedule/schedule_bench.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/gdn_bench/statistics.h"

namespace gdn::bench {
namespace {

constexpr double kMilli = 1e-3;  // microseconds to milliseconds

std::vector<ScheduleCase> MakeCases() {
  std::vector<ScheduleCase> cases;
  const auto add = [&cases](std::string name, std::string what) -> SimulationOptions& {
    return cases.emplace_back(ScheduleCase{.name = std::move(name), .what = std::move(what)}).options;
  };
  const SimulatedLoad decodes{.name = "decode"};
  const SimulatedLoad prefills{.name = "prefill 2048", .prefill = true, .tokens = 2048};
  const auto of = [](SimulatedLoad load, std::string principal, int32_t sessions) {
    load.principal = std::move(principal);
    load.sessions = sessions;
    return load;
  };
  add("decode", "10,000 sessions decode through 48 layers").loads = {of(decodes, "one", 10000)};
  add("mixed", "9,900 sessions decode, 100 prefill").loads = {of(decodes, "one", 9900), of(prefills, "one", 100)};
  SimulationOptions& ten =
      add("ten principals", "ten principals with 990 decoding sessions each, five of them prefill too");
  for (int i = 0; i < 10; ++i) {
    ten.loads.push_back(of(decodes, absl::StrCat("p", i), 990));
    if (i < 5) ten.loads.push_back(of(prefills, absl::StrCat("p", i), 20));
  }
  SimulationOptions& weights = add("weights", "three principals that always have steps waiting, of weights 1, 2 and 4");
  weights.weights = {{"p1", 1}, {"p2", 2}, {"p4", 4}};
  weights.loads = {of(decodes, "p1", 2000), of(decodes, "p2", 2000), of(prefills, "p4", 20)};
  weights.loads[1].model = 1;
  for (SimulatedLoad& load : weights.loads) load.think_us = 10;
  SimulationOptions& layers =
      add("layers beside a prefill", "one session decodes at each of 48 layers, one prefills 16,384 tokens");
  layers.loads = {of(decodes, "one", 48), of(prefills, "one", 1)};
  layers.loads[1].name = "prefill 16384";
  layers.loads[1].tokens = 16384;
  SimulationOptions& one_layer = add("one layer", "64 sessions decode at one layer");
  one_layer.loads = {of(decodes, "one", 64)};
  one_layer.loads[0].layers = 1;
  SimulationOptions& many = add("10,000 principals", "10,000 principals decode with one session each at one layer");
  for (int i = 0; i < 10000; ++i) {
    many.loads.push_back(of(decodes, absl::StrCat("p", i), 1));
    many.loads.back().layers = 1;
  }
  return cases;
}

// Loads that are alike in everything but their principal count as one in a report.
struct Row {
  std::string name;
  std::string principal;
  int32_t sessions = 0;
  double share = 0;
  std::vector<double> waits_us = {};
  std::vector<double> calls_us = {};
};

std::vector<Row> RowsOf(const ScheduleCase& c) {
  const double total = std::accumulate(c.result.device_us.begin(), c.result.device_us.end(), 0.0);
  std::vector<Row> rows;
  for (size_t i = 0; i < c.options.loads.size(); ++i) {
    const SimulatedLoad& load = c.options.loads[i];
    if (rows.empty() || c.options.loads.size() <= 20 || rows.back().name != load.name) {
      rows.push_back({.name = load.name, .principal = load.principal});
    } else {
      rows.back().principal = "each";
    }
    Row& row = rows.back();
    row.sessions += load.sessions;
    row.share += c.result.device_us[i] / total;
    const LoadResult& result = c.result.loads[i];
    row.waits_us.insert(row.waits_us.end(), result.waits_us.begin(), result.waits_us.end());
    row.calls_us.insert(row.calls_us.end(), result.calls_us.begin(), result.calls_us.end());
  }
  return rows;
}

}  // namespace

std::vector<ScheduleCase> RunScheduleBench(const ScheduleBenchOptions& options) {
  std::vector<ScheduleCase> cases = MakeCases();
  for (ScheduleCase& c : cases) {
    c.options.seconds = options.seconds;
    c.options.window_seconds = options.seconds / 10;
    c.options.seed = options.seed;
    c.result = Simulate(c.options);
  }
  return cases;
}

std::string ScheduleTable(const std::vector<ScheduleCase>& cases) {
  std::string table =
      "waits: from when a call, or a prefill's next segment, could run until it did; simulated time of a device with "
      "MI50's figures\n";
  for (const ScheduleCase& c : cases) {
    absl::StrAppendFormat(&table,
                          "\n%s: %s\n  device busy %.2f; at most %d steps waited; decode rows a launch %.0f in the "
                          "second tenth, %.0f in the last\n  a decision: median %.1f us, p99 %.1f us of %d\n",
                          c.name, c.what, c.result.busy, c.result.most_waiting, c.result.rows[1], c.result.rows.back(),
                          Percentile(c.result.decision_us, 0.5), Percentile(c.result.decision_us, 0.99),
                          c.result.decision_us.size());
    absl::StrAppendFormat(&table, "  %-14s %-5s %8s %6s %10s %10s %10s %10s %10s\n", "load", "of", "sessions", "share",
                          "wait p50", "p99", "max ms", "call p50", "p99 ms");
    for (const Row& row : RowsOf(c)) {
      absl::StrAppendFormat(&table, "  %-14s %-5s %8d %6.3f", row.name, row.principal, row.sessions, row.share);
      for (const double fraction : {0.5, 0.99, 1.0}) {
        absl::StrAppendFormat(&table, " %10.2f", Percentile(row.waits_us, fraction) * kMilli);
      }
      absl::StrAppendFormat(&table, " %10.2f %10.2f\n", Percentile(row.calls_us, 0.5) * kMilli,
                            Percentile(row.calls_us, 0.99) * kMilli);
    }
  }
  return table;
}

nlohmann::ordered_json ScheduleJson(const std::vector<ScheduleCase>& cases) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const ScheduleCase& c : cases) {
    nlohmann::ordered_json loads = nlohmann::ordered_json::array();
    for (const Row& row : RowsOf(c)) {
      loads.push_back({{"load", row.name},
                       {"principal", row.principal},
                       {"sessions", row.sessions},
                       {"share", row.share},
                       {"wait_p50_ms", Percentile(row.waits_us, 0.5) * kMilli},
                       {"wait_p99_ms", Percentile(row.waits_us, 0.99) * kMilli},
                       {"wait_max_ms", Percentile(row.waits_us, 1) * kMilli},
                       {"call_p50_ms", Percentile(row.calls_us, 0.5) * kMilli},
                       {"call_p99_ms", Percentile(row.calls_us, 0.99) * kMilli}});
    }
    all.push_back({{"name", c.name},
                   {"what", c.what},
                   {"seconds", c.options.seconds},
                   {"busy", c.result.busy},
                   {"most_waiting", c.result.most_waiting},
                   {"rows", c.result.rows},
                   {"decision_p50_us", Percentile(c.result.decision_us, 0.5)},
                   {"decision_p99_us", Percentile(c.result.decision_us, 0.99)},
                   {"loads", std::move(loads)}});
  }
  return {{"command", "schedule"}, {"cases", std::move(all)}};
}

}  // namespace gdn::bench
