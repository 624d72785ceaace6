#include "tools/gdn_bench/states/state_bench.h"

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/temporary_folder.h"
#include "base/status_macros.h"

namespace gdn::bench {
namespace {

absl::Status Validate(const StateBenchOptions& o) {
  GDN_RETURN_IF_ERROR(CheckRange("layers", o.layers, 1, 128));
  GDN_RETURN_IF_ERROR(CheckRange("repeat", o.repeat, 1, 10000));
  GDN_RETURN_IF_ERROR(CheckRange("forks", o.forks, 1, 100000));
  GDN_RETURN_IF_ERROR(CheckRange("pause_phases", o.pause_phases, 1, 10000));
  return CheckRange("pause_calls", o.pause_calls, 1, 1000000);
}

struct Turns {
  std::vector<double> a, b;  // seconds of each round
};

// Whoever was first in one round is second in the next. Those to warm up do not count.
absl::StatusOr<Turns> TakeTurns(int warm_up, int rounds, const TimedFn& a, const TimedFn& b) {
  Turns turns;
  for (int round = -warm_up; round < rounds; ++round) {
    for (const bool take_a : {round % 2 == 0, round % 2 != 0}) {
      GDN_ASSIGN_OR_RETURN(const double seconds, (take_a ? a : b)());
      if (round >= 0) (take_a ? turns.a : turns.b).push_back(seconds);
    }
  }
  return turns;
}

Summary SummarizeRates(int64_t bytes, std::vector<double> seconds) {
  for (double& s : seconds) s = static_cast<double>(bytes) / s;
  return Summarize(seconds);
}

}  // namespace

absl::Status MeasureRate(const char* name, const char* measure, int64_t bytes, const TimedFn& thing,
                         const TimedFn& plain, StateReport& report) {
  std::fprintf(stderr, "%s: %d rounds beside %s\n", name, report.options.repeat, measure);
  GDN_ASSIGN_OR_RETURN(const Turns turns, TakeTurns(/*warm_up=*/1, report.options.repeat, thing, plain));
  report.rates.push_back({name, measure, bytes, SummarizeRates(bytes, turns.a), SummarizeRates(bytes, turns.b),
                          SummarizeRatios(turns.b, turns.a)});
  return absl::OkStatus();
}

absl::Status MeasureFork(const char* name, const TimedFn& many, const TimedFn& one, StateReport& report) {
  std::fprintf(stderr, "%s: %d of each shape\n", name, report.options.forks);
  GDN_ASSIGN_OR_RETURN(const Turns turns, TakeTurns(/*warm_up=*/5, report.options.forks, many, one));
  report.forks.push_back(
      {name, report.options.layers, Summarize(turns.a), Summarize(turns.b), SummarizeRatios(turns.a, turns.b)});
  return absl::OkStatus();
}

absl::StatusOr<StateReport> RunStateBench(const StateBenchOptions& options) {
  GDN_RETURN_IF_ERROR(Validate(options));
  StateReport report{.options = options, .state_bytes = 0, .load_average = 0, .rates = {}, .forks = {}, .pauses = {}};
  if (getloadavg(&report.load_average, 1) != 1) report.load_average = 0;
  GDN_ASSIGN_OR_RETURN(const TemporaryFolder scratch, TemporaryFolder::Make());
  std::optional<TemporaryFolder> disk;
  if (!options.folder.empty()) {
    GDN_ASSIGN_OR_RETURN(TemporaryFolder made, TemporaryFolder::MakeIn(options.folder));
    disk.emplace(std::move(made));
  }
  const std::string folder = disk.has_value() ? disk->path() : scratch.path();
  {
    GDN_ASSIGN_OR_RETURN(const ServerPair servers,
                         StartServers({.server = options.server, .self = options.self, .folder = scratch.path()},
                                      {absl::StrCat("--disk_dir=", folder, "/server")}));
    GDN_RETURN_IF_ERROR(MeasureTransfers(servers.targets, report));
    GDN_RETURN_IF_ERROR(MeasureForks(servers.targets, report));
    GDN_RETURN_IF_ERROR(MeasurePauses(servers.targets, report));
  }
  // After the children have ended: their processors and memory are not to be shared.
  GDN_RETURN_IF_ERROR(MeasureTiers(folder, report));
  return report;
}

}  // namespace gdn::bench
