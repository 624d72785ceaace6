// The server's options as its command line and its file of --config have them.
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

// Errors of SplitArguments, and INVALID_ARGUMENT for an argument that is no flag, are in the result's status.
CommandFlags ReadCommandLine(const std::vector<std::string>& arguments);
bool ChecksConfig(const CommandFlags& line);  // --check-config

// The options that the file of --config and the command line make together; the command line overrides the file, and
// gives some lists an element at a time. Call
// it again to see what a changed file says. INVALID_ARGUMENT telling everything that is wrong, a line each, with the
// flag, its value and what was expected, and the place in the file.
absl::StatusOr<ServerOptions> ReadOptions(const CommandFlags& line);

struct OptionChange {
  std::string name;
  bool takes_effect = false;
};

// Names the options in which `next` differs from `options`, which takes over those that may change while a server runs.
std::vector<OptionChange> TakeLiveChanges(ServerOptions& options, const ServerOptions& next);

std::string OptionsHelp();
// All options that the file may hold, in the form of the file; passwords are hidden.
std::string PrintOptions(const ServerOptions& options);

}  // namespace gdn
