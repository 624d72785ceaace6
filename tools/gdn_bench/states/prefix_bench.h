// `gdn_bench prefix`: measures the time to a prompt's first output, with and without a kept prefix.
//
// gdn_server, with a synthetic checkpoint, runs as a child process. A prompt has segments of 512 tokens and a rest.
// Both sessions ask for the prompt's prefix, but only one prefix is kept by the server. Rounds of both alternate.
// Thread safety: one thread.
//
//   GDN_ASSIGN_OR_RETURN(PrefixReport report, RunPrefixBench({.server = "/path/gdn_server", .self = "/path/bench"}));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/gdn_bench/statistics.h"

namespace gdn::bench {

struct PrefixBenchOptions {
  int tokens = 8192;     // tokens of the prefix; a multiple of kPrefixSegmentTokens
  int rest_tokens = 64;  // tokens of the prompt after the prefix
  int layers = 2;        // layers with Qwen3-Next's dimensions and BF16 weights
  int rounds = 5;
  std::string backend = "cpu";
  int threads = 0;     // number of CPU threads; 0: one for each processor
  std::string server;  // path of gdn_server
  std::string self;    // path of this program
};

inline constexpr int kPrefixSegmentTokens = 512;

struct PrefixReport {
  PrefixBenchOptions options;
  std::string device, numerics_id;  // as reported by the server
  double load_average = 0;          // of the system, over the minute before the measurement
  int64_t state_bytes = 0;          // size of a session's states, and of a kept prefix
  bool equal_bits = false;          // the outputs of all rounds had the same bits
  Summary known_s, unknown_s;       // with and without a kept prefix: from CreateSession to the last layer's output
  Summary create_s;                 // CreateSession alone, with a kept prefix
  Summary keep_s;                   // KeepPrefix of a new prefix
  Summary ratio;                    // unknown / known, of adjacent rounds
};

// Starts a server and measures. INVALID_ARGUMENT for an option out of range; errors of the child and of the first call
// that fails.
absl::StatusOr<PrefixReport> RunPrefixBench(const PrefixBenchOptions& options);
std::string PrefixTable(const PrefixReport& report);
nlohmann::ordered_json PrefixJson(const PrefixReport& report);

}  // namespace gdn::bench
