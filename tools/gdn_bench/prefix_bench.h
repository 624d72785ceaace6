// `gdn_bench prefix`: how long a prompt takes to its first output when its beginning is known, beside when it is not.
//
// gdn_server, over a checkpoint made for the occasion, runs as a child of this process. A prompt is segments of 512
// tokens and some more; both sessions ask for its prefix, one of them for one that is kept. Rounds of the two
// alternate.
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
  int tokens = 8192;     // of the prefix; a multiple of kPrefixSegmentTokens
  int rest_tokens = 64;  // behind it
  int layers = 2;        // of Qwen3-Next's dimensions, BF16 weights
  int rounds = 5;
  std::string backend = "cpu";
  int threads = 0;     // of the CPU
  std::string server;  // path of gdn_server
  std::string self;    // path of this program
};

inline constexpr int kPrefixSegmentTokens = 512;

struct PrefixReport {
  PrefixBenchOptions options;
  std::string device, numerics_id;  // as the server says
  double load_average = 0;          // of the minute before
  int64_t state_bytes = 0;          // of a session, and so of the entry
  bool equal_bits = false;          // the outputs of all rounds of both
  Summary known_s, unknown_s;       // from CreateSession to the last layer's output
  Summary create_s;                 // of the known: CreateSession alone
  Summary keep_s;                   // KeepPrefix of an entry that is not there
  Summary ratio;                    // of adjacent rounds: unknown / known
};

// INVALID_ARGUMENT for an option out of range; errors of the child and of the first call that fails.
absl::StatusOr<PrefixReport> RunPrefixBench(const PrefixBenchOptions& options);
std::string PrefixTable(const PrefixReport& report);
nlohmann::ordered_json PrefixJson(const PrefixReport& report);

}  // namespace gdn::bench
