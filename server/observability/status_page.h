// The status page, for people: what runs, how full its places are, what the last minutes were like, which calls were
// slow, who holds what. HTML with drawings inside, no script and nothing from elsewhere; it follows the reader's width
// and light or dark preference.
//
// Everything that comes from outside is escaped here, so whoever fills the page need not think of it.
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

// What happened in one second.
struct StatusSecond {
  double decode_tokens = 0;
  double prefill_tokens = 0;
  double errors = 0;
  double waiting_steps = 0;                              // at its end
  std::optional<double> rows_per_launch = std::nullopt;  // of decodes; nothing where there was none
  std::optional<double> decode_p50_ms = std::nullopt;
  std::optional<double> decode_p99_ms = std::nullopt;
};

struct StatusPage {
  struct Model {
    std::string name, family, dims, weights;
    int64_t layers = 0;  // those of Gated DeltaNet
  };
  struct Tier {
    std::string name;
    int64_t used_bytes = 0;
    int64_t limit_bytes = 0;  // 0: none
    int64_t sessions = 0;
    std::string problem = {};  // "": none
    std::string note = {};     // what else there is to say; ""
  };
  struct Prefixes {
    bool on = false;  // else there is nothing to show
    int64_t entries = 0, used_bytes = 0, limit_bytes = 0;
    int64_t hits = 0, misses = 0, tokens_skipped = 0;
  };
  struct Call {
    std::string method = {}, session = {}, principal = {}, trace_id = {};
    int32_t layer = 0, rows = 0;
    int64_t tokens = 0;
    absl::Time when = absl::UnixEpoch();
    absl::Duration duration = absl::ZeroDuration();
    std::string status = {};  // "": it ended well
    std::vector<std::pair<std::string, absl::Duration>> stages = {};
  };
  struct Holder {
    std::string name;
    double weight = 1;
    int64_t state_bytes = 0, device_bytes = 0, call_bytes = 0;
    double device_shares = 0;  // over 1 it holds more than its own
  };

  std::string version = {}, backend = {}, device = {}, numerics_id = {};
  std::string trouble = {};  // why it is not ready; "": it is
  absl::Time now = absl::UnixEpoch();
  absl::Duration uptime = absl::ZeroDuration();
  int64_t sessions = 0;
  int64_t waiting_steps = 0;
  std::vector<std::string> addresses = {};
  std::vector<Model> models = {};
  std::vector<Tier> tiers = {};
  Prefixes prefixes = {};
  std::vector<StatusSecond> seconds = {};  // the oldest first
  bool traces = false;                     // else there are no calls to show
  std::vector<Call> calls = {};            // the longest first
  std::vector<Holder> holders = {};        // the largest first
  int64_t more_holders = 0;                // than these
};

std::string RenderStatusPage(const StatusPage& page);

}  // namespace gdn
