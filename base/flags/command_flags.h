// Abseil's flags as every program of this tree reads them from its command line.
//
// absl::ParseCommandLine ends the process with code 1, also for --help, and says of a value no more than that it is
// illegal. These functions return what is wrong, so that a program can end with 2, which service managers do not
// restart.
// Thread safety: for the main thread, before others read flags. Ownership: plain values.
//
//   const auto ours = [](const absl::CommandLineFlag& flag) { return flag.Filename().find("gdn_bench/") != npos; };
//   GDN_ASSIGN_OR_RETURN(CommandFlags line, SetFlags({argv + 1, argv + argc}, ours));
//   if (line.help) std::cout << FlagsHelp(ours);
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gdn {

struct CommandFlags {
  std::vector<std::pair<std::string, std::string>> values;  // names with -, and values, in the line's order
  std::vector<std::string> positional;                      // what is not a flag; everything after "--"
  bool help = false;                                        // --help or -h
  bool version = false;                                     // --version, unless a flag has that name
  absl::Status status;                                      // the first fault; what stands behind it is not read
};

// Flags by their names, with -. True: the flag is a switch, which needs no value.
using FlagNames = std::map<std::string, bool, std::less<>>;

// Splits `arguments`, the program's name left out: --name=value, --name value, --name and --noname of a switch, each
// also with one dash, and with _ for - in names. The status is INVALID_ARGUMENT for a flag that does not exist, with
// the nearest name that does, and for a flag without its value.
CommandFlags SplitArguments(const std::vector<std::string>& arguments, const FlagNames& names);

using TakesFlag = absl::FunctionRef<bool(const absl::CommandLineFlag& flag)>;

// Splits `arguments` and sets Abseil's flags. Errors of SplitArguments, also for a flag that `takes` refuses, and
// INVALID_ARGUMENT for a value that cannot be parsed, with the form that was expected.
absl::StatusOr<CommandFlags> SetFlags(const std::vector<std::string>& arguments, TakesFlag takes);

inline constexpr std::string_view kTimeForm = "a time with its unit, such as 500ms, 30s or 5m";

// "name is 'value', expected ..", with a long value cut. If a time was expected and the value lacks its unit, it ends
// with "; did you mean 5s?".
std::string WrongValue(std::string_view name, std::string_view value, std::string_view expected);

// "  --name   help Default: x." and a newline. `value`: the default; "" and "false" are not shown.
std::string FlagHelp(std::string_view name, std::string_view help, std::string_view value);
std::string FlagHelp(const absl::CommandLineFlag& flag);
// The help of all flags that are taken, by name.
std::string FlagsHelp(TakesFlag takes);

// The one that `name` was probably meant to be; "" if none is near.
std::string NearestName(std::string_view name, const std::vector<std::string_view>& names);

}  // namespace gdn
