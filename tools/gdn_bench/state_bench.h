// `gdn_bench state`: what it costs to move a session's states, as ratios to plain copies of the same bytes.
//
// Transfers run against a gdn_server in a child process and a plain gRPC stream in another; moves between tiers run in
// this process, through the code that the server moves sessions with. Every measurement stands beside its measure:
// rounds of the two alternate. Thread safety: one thread.
//
//   GDN_ASSIGN_OR_RETURN(StateReport report, RunStateBench({.server = "/path/gdn_server", .self = "/path/gdn_bench"}));
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/gdn_bench/rpc_setup.h"
#include "tools/gdn_bench/statistics.h"

namespace gdn::bench {

struct StateBenchOptions {
  int layers = 36;        // of a session; H = 16, HV = 32, K = V = 128
  int repeat = 15;        // rounds of a transfer or move
  int forks = 200;        // of each shape
  int pause_phases = 20;  // with checkpoints, and as many without
  int pause_calls = 200;  // Decode calls of the neighbour in a phase
  std::string folder;     // for the disk tier's files; "": a temporary one
  std::string server;     // path of gdn_server
  std::string self;       // path of this program, which is also the plain stream's server
};

// One thing beside its measure.
struct RateResult {
  std::string name;     // "export"
  std::string measure;  // "grpc_stream"
  int64_t bytes = 0;    // of a round
  Summary bytes_per_s;
  Summary measure_bytes_per_s;
  Summary ratio;  // of adjacent rounds: the thing's rate / its measure's
};

struct ForkResult {
  std::string name;  // "fork_rpc", "fork_session"
  int layers = 0;
  Summary many_s;  // of a session of `layers`
  Summary one_s;   // of one of a single layer
  Summary ratio;   // of adjacent ones: many / one
};

struct PauseResult {
  std::string name;  // "pause_full", "pause_changes"
  int64_t checkpoints = 0;
  double checkpoint_s = 0;  // of one, on average
  Latencies with, without;  // of the neighbour's calls, as many of each
};

struct StateReport {
  StateBenchOptions options;
  int64_t state_bytes = 0;  // of the session's slots
  double load_average = 0;  // of the minute before
  std::vector<RateResult> rates;
  std::vector<ForkResult> forks;
  std::vector<PauseResult> pauses;
};

// INVALID_ARGUMENT for an option out of range; errors of the children and of the first call or move that fails.
absl::StatusOr<StateReport> RunStateBench(const StateBenchOptions& options);

// The parts of it, by report.options; gdn_server has a --disk-dir.
absl::Status MeasureTransfers(const Targets& targets, StateReport& report);
absl::Status MeasureTiers(const std::string& folder, StateReport& report);
absl::Status MeasureForks(const Targets& targets, StateReport& report);
absl::Status MeasurePauses(const Targets& targets, StateReport& report);

// Returns the seconds that it took.
using TimedFn = std::function<absl::StatusOr<double>()>;

// Adds forks of a session of options.layers and of one of a single layer, in turn, after a few to warm up.
absl::Status MeasureFork(const char* name, const TimedFn& many, const TimedFn& one, StateReport& report);

// Adds the rates of the two, run in turn options.repeat times after one round to warm up.
absl::Status MeasureRate(const char* name, const char* measure, int64_t bytes, const TimedFn& thing,
                         const TimedFn& plain, StateReport& report);

}  // namespace gdn::bench
