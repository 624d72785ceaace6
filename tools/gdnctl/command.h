// The frame of gdnctl's subcommands: names, flags, usage, exit codes.
//
// Thread safety: for the main thread. Ownership: commands are constants of the program.
//
//   const Command kInfo{.name = "info", .summary = "Version, backend, limits", .run = RunInfo};
//   return RunCommandLine(commands, arguments);
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"

ABSL_DECLARE_FLAG(std::string, target);
ABSL_DECLARE_FLAG(bool, json);
ABSL_DECLARE_FLAG(std::vector<std::string>, session);

namespace gdn {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

struct Command {
  std::string_view name;                     // one word or two: "state export"
  std::string_view arguments = {};           // after the flags: "ID [ID ...]"; "": none are taken
  std::string_view summary;                  // one line
  std::string_view details = {};             // paragraphs for its own --help; may be empty
  std::vector<std::string_view> flags = {};  // beside those of every command (connection.cc)
  // Exit code, or an error that is printed; kExitUsage for those made by UsageError.
  absl::StatusOr<int> (*run)(const std::vector<std::string>& arguments);
};

// An error of the command line.
absl::Status UsageError(std::string_view message);

// Finds the command, reads its flags, runs it and returns the process's exit code. Errors go to stderr.
int RunCommandLine(const std::vector<Command>& commands, const std::vector<std::string>& arguments);

// A client by the common flags (connection.cc).
std::unique_ptr<Client> ConnectByFlags();

// "NAME" and "models/NAME" become "models/NAME"; likewise for sessions. UsageError where `id` is empty.
absl::StatusOr<std::string> ModelName(std::string_view id);
absl::StatusOr<std::string> SessionName(std::string_view id);

// The names of the ids of a command that needs one at the least.
absl::StatusOr<std::vector<std::string>> SessionNames(const std::vector<std::string>& ids);
// The name of the one id of --session.
absl::StatusOr<std::string> OneSession();

// The value of --epoch; 0 if the flag is not given.
absl::StatusOr<int64_t> EpochByFlag();
// Names that epoch in a request that uses the session's state.
template <typename Request>
absl::Status SetEpoch(Request* request) {
  const absl::StatusOr<int64_t> epoch = EpochByFlag();
  if (epoch.ok() && *epoch > 0) request->set_session_epoch(*epoch);
  return epoch.status();
}

// "H,HV,K,V" or "H,HV,K,V,LAYERS", and maybe ",per-channel".
absl::StatusOr<v1::OperatorSpec> ParseOperatorSpec(const std::vector<std::string>& words);

}  // namespace gdn
