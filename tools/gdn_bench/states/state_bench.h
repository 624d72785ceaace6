// `gdn_bench state`: measures moves of a session's states, as ratios to plain copies of the same bytes.
//
// Transfers use a gdn_server in a child process, and a plain gRPC stream to another one for comparison. Moves between
// tiers run in this process, through the server's own code. Rounds of a measurement and of its comparison alternate.
// Thread safety: one thread.
//
//   GDN_ASSIGN_OR_RETURN(StateReport report, RunStateBench({.server = "/path/gdn_server", .self = "/path/gdn_bench"}));
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/gdn_bench/serve/rpc_setup.h"
#include "tools/gdn_bench/statistics.h"

namespace gdn::bench {

struct StateBenchOptions {
  int layers = 36;        // layers of a session; H = 16, HV = 32, K = V = 128
  int repeat = 15;        // rounds of a transfer or move
  int forks = 200;        // forks of each shape
  int pause_phases = 20;  // phases with checkpoints, and as many without
  int pause_calls = 200;  // Decode calls of another session in a phase
  std::string folder;     // for the disk tier's files; "": a temporary one
  std::string server;     // path of gdn_server
  std::string self;       // path of this program, which is also the plain stream's server
};

// The rate of a transfer or move, and that of its comparison.
struct RateResult {
  std::string name;     // name of the transfer or move, such as "export"
  std::string measure;  // name of the comparison, such as "grpc_stream"
  int64_t bytes = 0;    // bytes of a round
  Summary bytes_per_s;
  Summary measure_bytes_per_s;
  Summary ratio;  // rate / rate of the comparison, of adjacent rounds
};

struct ForkResult {
  std::string name;  // "fork_rpc", "fork_session"
  int layers = 0;
  Summary many_s;  // seconds for a session of `layers` layers
  Summary one_s;   // seconds for a session of a single layer
  Summary ratio;   // many / one, of adjacent forks
};

struct PauseResult {
  std::string name;  // "pause_full": checkpoints are whole; "pause_changes": they have what changed
  int64_t checkpoints = 0;
  double checkpoint_s = 0;  // mean seconds of a checkpoint
  Latencies with, without;  // another session's calls with and without checkpoints, equally many
};

struct StateReport {
  StateBenchOptions options;
  int64_t state_bytes = 0;  // size of the measured session's slots
  double load_average = 0;  // of the system, over the minute before the measurement
  std::vector<RateResult> rates;
  std::vector<ForkResult> forks;
  std::vector<PauseResult> pauses;
};

// Starts the servers and measures all transfers, moves, forks and pauses. INVALID_ARGUMENT for an option out of range;
// errors of the children and of the first call or move that fails.
absl::StatusOr<StateReport> RunStateBench(const StateBenchOptions& options);

// Measure the parts of the report with report.options, and add the results. gdn_server must have a --disk-dir.
absl::Status MeasureTransfers(const Targets& targets, StateReport& report);
absl::Status MeasureTiers(const std::string& folder, StateReport& report);
absl::Status MeasureForks(const Targets& targets, StateReport& report);
absl::Status MeasurePauses(const Targets& targets, StateReport& report);

// Does one fork or one round, and returns the seconds that it took.
using TimedFn = std::function<absl::StatusOr<double>()>;

// Alternates options.forks calls of `many` with as many of `one`, after 5 of each to warm up. `many` forks a session of
// options.layers layers, `one` a session of one layer. Adds the result to report.forks. Returns a call's error.
absl::Status MeasureFork(const char* name, const TimedFn& many, const TimedFn& one, StateReport& report);

// Alternates rounds of `thing` and `plain` options.repeat times, after one round of each to warm up, and adds their
// rates to report.rates. `bytes`: bytes of a round. `measure`: the name of `plain`. Returns the first error
// of a round.
absl::Status MeasureRate(const char* name, const char* measure, int64_t bytes, const TimedFn& thing,
                         const TimedFn& plain, StateReport& report);

}  // namespace gdn::bench
