// `gdn_bench rpc`: what the service costs around its kernels, as a ratio to an echo service over the same transport.
//
// gdn_server (with the null backend, which computes nothing) and the echo server run as children of this process on the
// loopback interface. Each worker has a connection and sessions of its own; blocks of calls alternate between the two
// servers. Thread safety: one thread.
//
//   GDN_ASSIGN_OR_RETURN(RpcReport report, RunRpcBench({.sessions = 8, .self = "/path/gdn_bench", .server =
//   "/path/gdn_server"}));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "tools/gdn_bench/statistics.h"

namespace gdn::bench {

struct RpcBenchOptions {
  int sessions = 8;            // B, in a call
  int tokens = 1;              // T, of each session
  int hidden = 2048;           // D
  DType dtype = DType::kBF16;  // of hidden_states and output
  int calls = 4000;            // to each server at each concurrency
  std::vector<int> concurrency = {1, 4};
  bool request_ids = false;  // send one with each call, as a client that retries does
  double time_limit_s = 60;  // for each concurrency; then the calls made so far are reported
  std::string server;        // path of gdn_server
  std::string self;          // path of this program, which is also the echo server
};

struct SideResult {
  Latencies latencies;
  Summary calls_per_s;  // of blocks
};

struct RpcResult {
  int concurrency = 0;
  SideResult gdn;
  SideResult echo;
  Summary p50_ratio;          // gdn / echo: median latency of adjacent blocks
  double p99_ratio = 0;       // gdn / echo, of all calls
  Summary calls_per_s_ratio;  // gdn / echo, of adjacent blocks
};

struct RpcReport {
  RpcBenchOptions options;
  int64_t request_bytes = 0;  // of one serialized DecodeRequest and DecodeResponse
  int64_t response_bytes = 0;
  std::vector<RpcResult> results;
};

// INVALID_ARGUMENT for an option out of range; errors of the children and of the first call that fails.
absl::StatusOr<RpcReport> RunRpcBench(const RpcBenchOptions& options);

}  // namespace gdn::bench
