// `gdn_bench serve`: measures the service's latency and rate, as ratios to echo servers and to the kernels alone.
//
// gdn_server, with a synthetic checkpoint, and the echo servers run as child processes. Each client has its own
// connection and sessions. Short blocks of calls alternate between the servers.
// Thread safety: one thread.
//
//   GDN_ASSIGN_OR_RETURN(ServeReport report, RunServeBench({.server = "/path/gdn_server", .self = "/path/gdn_bench"}));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/gdn_bench/serve/arrivals.h"
#include "tools/gdn_bench/serve/rpc_setup.h"
#include "tools/gdn_bench/serve/serve_calls.h"
#include "tools/gdn_bench/serve/serve_ratios.h"

namespace gdn::bench {

struct ServeOptions {
  Workload load;
  std::vector<int> concurrency = {1, 4};  // numbers of clients, each with its own connection and sessions
  double rate = 0;                        // calls per second of all clients; 0: each sends after its last reply
  Arrivals arrivals = Arrivals::kPoisson;
  int in_flight = 64;          // with a rate: most calls of all clients that wait for a reply at the same time
  int beside_tokens = 0;       // also measure during StreamPrefills of so many tokens by another session; 0: do not
  bool shared_memory = false;  // also measure with tensors in shared memory and messages over a Unix socket
  bool ring = false;           // also measure through rings
  bool echo = true;
  bool raw_echo = false;
  bool queue_echo = false;  // also measure echoes of bytes on completion queues
  std::string suite;        // "host", "goals", "step", "devices" or "secure": use its loads instead of `load`; "": none
  int calls = 4000;         // least number of calls to each server, for each load
  double time_limit_s = 20;  // longest time for each load; only the calls until then are reported
  Transport transport = Transport::kTcp;
  std::string backend = "null";  // backend of gdn_server
  int gpu_device = 0;
  std::string secure;       // for suite "secure": the folder of credentials.h; "": none
  std::string gpu_devices;  // for suite "devices": the second server's devices, such as "0,1"
  int threads = 0;          // number of CPU threads; 0: one for each processor
  bool apart = false;       // the clients run on one processor, the servers on the others
  std::string server;       // path of gdn_server
  std::string self;         // path of this program, which is also the echo server
};

// A load, with the ratios to report.
struct ServeRow {
  std::string name;
  Workload load;
  int clients = 1;
  int beside_tokens = 0;
  std::vector<RatioGoal> goals;
  bool shared_memory = false;
  bool several_devices = false;
  bool secure = false;  // also measure with TLS and tokens
  bool ring = false;    // also measure through rings

  // True if its ring's one client sleeps, so that its time is compared with that of two processes that only do that.
  bool wake_echo() const { return ring && clients == 1 && load.ring_spin_us == 0; }
};

struct ServeResult {
  ServeRow row;
  int64_t request_bytes = 0;  // size of one call's request on the wire
  int64_t response_bytes = 0;
  Measured measured;
  std::vector<RatioResult> ratios;
};

struct ServeReport {
  ServeOptions options;
  std::string backend, device, numerics_id;  // as reported by the server
  double load_average = 0;                   // of the system, over the minute before the measurement
  std::vector<ServeResult> results;
};

// Starts the servers and measures all rows. INVALID_ARGUMENT for an option out of range; errors of the children and of
// the first call that fails.
absl::StatusOr<ServeReport> RunServeBench(const ServeOptions& options);

// Returns the rows to measure, in order. INVALID_ARGUMENT for an unknown suite.
absl::StatusOr<std::vector<ServeRow>> ServeRows(const ServeOptions& options);

}  // namespace gdn::bench
