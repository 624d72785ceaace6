// Abseil's flags as the tools read them from their command lines.
//
// absl::ParseCommandLine ends the process with code 1, also for --help, and says of a value no more than that it is
// illegal. SetFlags returns what is wrong, so that a program can end with 2, which service managers do not restart.
// Thread safety: for the main thread, before others read flags. Ownership: plain values.
//
//   const auto ours = [](const absl::CommandLineFlag& flag) { return flag.Filename().find("gdn_bench/") != npos; };
//   GDN_ASSIGN_OR_RETURN(CommandFlags line, SetFlags({argv + 1, argv + argc}, ours));
//   if (line.help) std::cout << FlagsHelp(ours);
#pragma once

#include <string>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/flags/command_flags.h"

namespace gdn {

using TakesFlag = absl::FunctionRef<bool(const absl::CommandLineFlag& flag)>;

// Splits `arguments`, the program's name left out, and sets Abseil's flags. `takes` chooses the flags that the program
// has. Errors of SplitArguments, also for a flag that `takes` refuses, and INVALID_ARGUMENT for a value that cannot be
// parsed, with the form that was expected. Flags before the error are set.
absl::StatusOr<CommandFlags> SetFlags(const std::vector<std::string>& arguments, TakesFlag takes);

// Return the line of help of a flag (FlagHelp of base/flags/command_flags.h), and the lines of all flags that are
// taken, by name.
std::string FlagHelp(const absl::CommandLineFlag& flag);
std::string FlagsHelp(TakesFlag takes);

}  // namespace gdn
