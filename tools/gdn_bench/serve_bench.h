// `gdn_bench serve`: what a caller of the service feels, as ratios to echo services and to the kernels alone.
//
// gdn_server, over a checkpoint made for the occasion, and the echo servers run as children of this process. Each
// client has a connection and sessions of its own; short blocks of calls alternate between the servers.
// Thread safety: one thread.
//
//   GDN_ASSIGN_OR_RETURN(ServeReport report, RunServeBench({.server = "/path/gdn_server", .self = "/path/gdn_bench"}));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/gdn_bench/arrivals.h"
#include "tools/gdn_bench/rpc_setup.h"
#include "tools/gdn_bench/serve_calls.h"
#include "tools/gdn_bench/serve_ratios.h"

namespace gdn::bench {

struct ServeOptions {
  Workload load;
  std::vector<int> concurrency = {1, 4};  // clients, a connection and sessions each
  double rate = 0;                        // calls a second by all clients; 0: each calls when it has been answered
  Arrivals arrivals = Arrivals::kPoisson;
  int in_flight = 64;          // with a rate: calls that may wait for a reply at once, over all clients
  int beside_tokens = 0;       // also beside another session's StreamPrefills of so many tokens; 0: no
  bool shared_memory = false;  // also with tensors in shared memory and the rest on a Unix socket
  bool echo = true;
  bool raw_echo = false;
  std::string suite;         // "host", "goals", "devices" or "secure": their loads in place of the one above; "": none
  int calls = 4000;          // to each server, for each load
  double time_limit_s = 20;  // for each load; then the calls made so far are reported
  Transport transport = Transport::kTcp;
  std::string backend = "null";  // of gdn_server
  int gpu_device = 0;
  std::string secure;       // the folder of credentials.h, of suite "secure"; "": none
  std::string gpu_devices;  // "0,1": of the second server of suite "devices"
  int threads = 0;          // of the CPU
  std::string server;       // path of gdn_server
  std::string self;         // path of this program, which is also the echo server
};

// One load, and what is to be known of it.
struct ServeRow {
  std::string name;
  Workload load;
  int clients = 1;
  int beside_tokens = 0;
  std::vector<RatioGoal> goals;
  bool shared_memory = false;
  bool several_devices = false;
  bool secure = false;  // also with TLS and tokens
};

struct ServeResult {
  ServeRow row;
  int64_t request_bytes = 0;  // of a call, on the wire
  int64_t response_bytes = 0;
  Measured measured;
  std::vector<RatioResult> ratios;
};

struct ServeReport {
  ServeOptions options;
  std::string backend, device, numerics_id;  // as the server says
  double load_average = 0;                   // of the minute before
  std::vector<ServeResult> results;
};

// INVALID_ARGUMENT for an option out of range; errors of the children and of the first call that fails.
absl::StatusOr<ServeReport> RunServeBench(const ServeOptions& options);

// What is run, in order. INVALID_ARGUMENT for a suite of another name.
absl::StatusOr<std::vector<ServeRow>> ServeRows(const ServeOptions& options);

}  // namespace gdn::bench
