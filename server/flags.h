// The server's command line, checked.
//
// Thread safety: call once, from main. Ownership: plain values.
//
//   absl::StatusOr<ServerOptions> options = ParseServerFlags(argc, argv);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/observability/logging.h"
#include "server/validation/step_input.h"

namespace gdn {

struct ServerOptions {
  std::vector<std::pair<std::string, std::string>> models;  // name, folder
  std::string listen;
  std::string port_file;
  std::string backend;
  int32_t threads = 0;
  int32_t gpu_device = 0;
  int64_t device_state_bytes = 0;           // 0: by the device's memory
  int32_t state_slots = 0;                  // instead of device_state_bytes, where not 0
  std::optional<int64_t> host_state_bytes;  // nothing: by the backend and the host's memory
  std::string disk_dir;
  int64_t disk_state_bytes = 0;
  std::string redis;
  std::string redis_prefix;
  int64_t checkpoint_every_tokens = 0;
  absl::Duration checkpoint_every;
  absl::Duration session_idle_ttl;
  int64_t stored_reply_bytes = 0;
  StepLimits limits;
  int32_t max_queued_steps = 0;
  absl::Duration drain_timeout;
  LoggingOptions logging;
};

// Flags may be written with - or _, and --model may stand several times. INVALID_ARGUMENT naming the flag, its value
// and what was expected. Prints and exits for --help and for flags that do not exist.
absl::StatusOr<ServerOptions> ParseServerFlags(int argc, char** argv);

}  // namespace gdn
