// The server's command line and its file of flags, checked.
//
// Thread safety: call once, from main. Ownership: plain values.
//
//   absl::StatusOr<ServerOptions> options = ParseServerFlags(argc, argv);
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/gdn_server.h"
#include "server/observability/logging.h"

namespace gdn {

struct ServerOptions : GdnServerOptions {
  std::string port_file;
  std::string backend;
  int32_t threads = 0;
  std::vector<int32_t> gpu_devices = {0};  // at least one, each once
  std::string gpu_graphs;
  absl::Duration drain_timeout;
  absl::Duration drain_checkpoint_timeout;
  bool exit_on_device_failure = false;
  LoggingOptions logging;
};

// Flags may be written with - or _, and --model may stand several times. Those of the file of --config hold where the
// command line does not say otherwise. INVALID_ARGUMENT telling everything that is wrong, a line each, with the flag,
// its value and what was expected, and where it stands in the file. Prints and exits with 0 for --help and --version.
absl::StatusOr<ServerOptions> ParseServerFlags(int argc, char** argv);

// What the flags say now. What is wrong with their values is added to `faults`, as "--flag is ..".
ServerOptions OptionsOfFlags(std::vector<std::string>& faults);

// What is wrong with values, by themselves and together.
std::vector<std::string> OptionFaults(const ServerOptions& options);

// After ParseServerFlags, one thread at a time:

struct FlagChange {
  std::string flag;  // as Abseil has it
  std::string name;  // as in the file
  bool takes_effect = false;
};

// Reads the file of --config anew. The flags named in `live` take what it says now, or their default where it says
// nothing any more; others that differ keep their value and are named too. A file with a fault changes nothing; its
// errors are ParseServerFlags's.
absl::StatusOr<std::vector<FlagChange>> ReloadConfig(const std::set<std::string>& live);

std::string ConfigPath();  // "": there is no file
bool OnlyCheckConfig();    // --check-config
std::string PrintFlags();  // all flags, in the form of the file; passwords hidden

}  // namespace gdn
