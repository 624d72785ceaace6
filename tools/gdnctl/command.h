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
  std::string_view arguments = {};           // positional arguments for the usage: "ID [ID ...]"; "": none
  std::string_view summary;                  // one line
  std::string_view details = {};             // paragraphs for its own --help; may be empty
  std::vector<std::string_view> flags = {};  // flags besides those of every command (connection.cc)
  // Runs the command. Returns the process's exit code, or an error, which the caller prints: it exits with kExitUsage
  // for an error of UsageError, else with kExitFailed.
  absl::StatusOr<int> (*run)(const std::vector<std::string>& arguments);
};

// Makes an error for an invalid command line: INVALID_ARGUMENT with the reason BAD_USAGE, so that gdnctl exits with
// kExitUsage.
absl::Status UsageError(std::string_view message);

// Finds the command that `arguments` (the program's name left out) begin with, reads its flags, runs it and returns the
// process's exit code. Errors go to stderr.
int RunCommandLine(const std::vector<Command>& commands, const std::vector<std::string>& arguments);

// Makes a client from the common flags (connection.cc). Call after PrepareConnection. Does not connect yet.
std::unique_ptr<Client> ConnectByFlags();

// Convert "NAME" or "models/NAME" to "models/NAME", and the same for sessions and leases. UsageError if there is no
// name.
absl::StatusOr<std::string> ToModelName(std::string_view id);
absl::StatusOr<std::string> ToSessionName(std::string_view id);
absl::StatusOr<std::string> ToLeaseName(std::string_view id);

// Converts ids to session names, for a command that needs at least one. UsageError if there is none.
absl::StatusOr<std::vector<std::string>> SessionNames(const std::vector<std::string>& ids);
// Returns "sessions/ID" of --session. UsageError unless the flag has exactly one id.
absl::StatusOr<std::string> OneSession();

// Returns the value of --epoch; 0 if the flag is not given. UsageError if it is negative.
absl::StatusOr<int64_t> EpochByFlag();
// Sets the request's session_epoch to --epoch, if that flag is above 0. UsageError if it is negative.
template <typename Request>
absl::Status SetEpoch(Request* request) {
  const absl::StatusOr<int64_t> epoch = EpochByFlag();
  if (epoch.ok() && *epoch > 0) request->set_session_epoch(*epoch);
  return epoch.status();
}

// Parses "H,HV,K,V" or "H,HV,K,V,LAYERS", optionally followed by ",per-channel", split at the commas. UsageError for
// other words; does not check the ranges.
absl::StatusOr<v1::OperatorSpec> ParseOperatorSpec(const std::vector<std::string>& words);

}  // namespace gdn
