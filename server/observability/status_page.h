// The status page for people: what runs, how full the tiers are, the last minutes, the slowest calls, and who holds
// what. The page is HTML with drawings inside. It loads one script from this server (status_script.h), and is complete
// without it. It follows the reader's screen width and light or dark preference.
//
// Everything that comes from outside is escaped here, so callers need not escape anything.
// Thread safety: a free function on a plain value.
//
//   const std::string html = RenderStatusPage({.version = "0.1.0", .backend = "cpu", ...});
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace gdn {

// Counts and latencies of one second.
struct StatusSecond {
  double decode_tokens = 0;
  double prefill_tokens = 0;
  double errors = 0;
  double waiting_steps = 0;                              // at the end of the second
  std::optional<double> rows_per_launch = std::nullopt;  // mean rows of a decode launch; nothing if there were none
  std::optional<double> decode_p50_ms = std::nullopt;
  std::optional<double> decode_p99_ms = std::nullopt;
};

struct StatusPage {
  struct Model {
    std::string name, family, dims, weights;
    int64_t layers = 0;  // Gated DeltaNet layers only
  };
  struct Tier {
    std::string name;
    int64_t used_bytes = 0;
    int64_t limit_bytes = 0;  // 0: no limit
    int64_t sessions = 0;
    std::string problem = {};  // "": no problem
    std::string note = {};     // more text to show; may be ""
  };
  struct Prefixes {
    bool on = false;  // if false, nothing is shown
    int64_t entries = 0, used_bytes = 0, limit_bytes = 0;
    int64_t hits = 0, misses = 0, tokens_skipped = 0;
  };
  struct Call {
    std::string method = {}, session = {}, principal = {}, trace_id = {};
    int32_t layer = 0, rows = 0;
    int64_t tokens = 0;
    absl::Time when = absl::UnixEpoch();
    absl::Duration duration = absl::ZeroDuration();
    std::string status = {};  // "": the call ended well
    std::vector<std::pair<std::string, absl::Duration>> stages = {};
  };
  struct Holder {
    std::string name;
    double weight = 1;
    int64_t state_bytes = 0, device_bytes = 0, call_bytes = 0;
    double device_shares = 0;  // above 1: more than its own share
  };

  std::string version = {}, backend = {}, device = {}, numerics_id = {};
  std::string trouble = {};  // why the server is not ready; "": it is ready
  absl::Time now = absl::UnixEpoch();
  absl::Duration uptime = absl::ZeroDuration();
  int64_t sessions = 0;
  int64_t waiting_steps = 0;
  std::vector<std::string> addresses = {};
  std::vector<Model> models = {};
  std::vector<Tier> tiers = {};
  Prefixes prefixes = {};
  std::vector<StatusSecond> seconds = {};  // the oldest first
  bool traces = false;                     // true if calls are traced
  std::vector<Call> calls = {};            // the slowest first
  std::vector<Holder> holders = {};        // the largest first
  int64_t more_holders = 0;                // how many are left out of `holders`
};

std::string RenderStatusPage(const StatusPage& page);

}  // namespace gdn
