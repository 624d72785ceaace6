// The server's command line, checked.
//
// Thread safety: call once, from main. Ownership: plain values.
//
//   absl::StatusOr<ServerOptions> options = ParseServerFlags(argc, argv);
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/gdn_server.h"
#include "server/observability/logging.h"

namespace gdn {

struct ServerOptions : GdnServerOptions {
  std::string port_file;
  std::string backend;
  int32_t threads = 0;
  int32_t gpu_device = 0;
  std::string gpu_graphs;
  absl::Duration drain_timeout;
  absl::Duration drain_checkpoint_timeout;
  bool exit_on_device_failure = false;
  LoggingOptions logging;
};

// Flags may be written with - or _, and --model may stand several times. INVALID_ARGUMENT naming the flag, its value
// and what was expected. Prints and exits for --help and for flags that do not exist.
absl::StatusOr<ServerOptions> ParseServerFlags(int argc, char** argv);

// What ParseServerFlags says of values, as INVALID_ARGUMENT.
absl::Status CheckOptions(const ServerOptions& options);

}  // namespace gdn
