// Reads the server's options from its command line and its --config file.
//
// Thread safety: free functions. Ownership: plain values.
//
//   const CommandFlags line = ReadCommandLine({argv + 1, argv + argc});
//   absl::StatusOr<ServerOptions> options = ReadOptions(line);
//   for (const OptionChange& change : TakeLiveChanges(*options, *ReadOptions(line))) ..  // once the file has changed
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/flags/command_flags.h"
#include "server/options/server_options.h"

namespace gdn {

// Splits the command line into flags and their values. The result's `status` has the errors of SplitArguments, and
// INVALID_ARGUMENT for an argument that is not a flag.
CommandFlags ReadCommandLine(const std::vector<std::string>& arguments);
bool ChecksConfig(const CommandFlags& line);  // true if the line has --check-config and it is not false

// Returns the options that the --config file and the command line set together. The command line overrides the file.
// For lists with OptionUse::kRepeats, each use of the flag gives one element. Call it again to read a changed file.
// INVALID_ARGUMENT lists everything that is wrong, one fault on a line, with the flag, its value, what was expected,
// and the place in the file.
absl::StatusOr<ServerOptions> ReadOptions(const CommandFlags& line);

struct OptionChange {
  std::string name;
  bool takes_effect = false;
};

// Returns the options that differ between `options` and `next`, by name, of those that the file may hold. Copies the
// ones that may change while a server runs (takes_effect) from `next` to `options`, and no others.
std::vector<OptionChange> TakeLiveChanges(ServerOptions& options, const ServerOptions& next);

std::string OptionsHelp();
// Returns all options that the file may hold, in the form of the file. Passwords in URLs are hidden.
std::string PrintOptions(const ServerOptions& options);

}  // namespace gdn
