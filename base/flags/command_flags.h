// The command line of every program of this tree: how it is split into flags, and its texts for help and errors.
//
// Thread safety: free functions. Ownership: plain values.
//
//   const CommandFlags line = SplitArguments({argv + 1, argv + argc}, {{"port", false}, {"verbose", true}});
//   if (!line.status.ok()) return 2;
//   for (const auto& [name, value] : line.values) Set(name, value);
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gdn {

struct CommandFlags {
  // Names (without leading dashes, with '-' between words) and values, in the line's order. The value of a switch is
  // "true", "false" or as written.
  std::vector<std::pair<std::string, std::string>> values;
  std::vector<std::string> positional;  // arguments that are no flags, and all after "--"
  bool help = false;                    // --help or -h
  bool version = false;                 // --version, unless a flag has that name
  absl::Status status;                  // the first fault; arguments after it are not read
};

// The program's flags by name, without leading dashes and with '-' between words. True: the flag is a switch, which
// needs no value.
using FlagNames = std::map<std::string, bool, std::less<>>;

// Splits `arguments`, the program's name left out: --name=value, --name value, --name and --noname of a switch, each
// also with one dash, and with _ for - in names. The status is INVALID_ARGUMENT for a flag that does not exist, with
// the nearest name that does, and for a flag without its value.
CommandFlags SplitArguments(const std::vector<std::string>& arguments, const FlagNames& names);

// Returns a flag's name as help and errors have it, with - in place of _.
std::string WithDashes(absl::string_view name);

inline constexpr std::string_view kTimeForm = "a time with its unit, such as 500ms, 30s or 5m";

// Returns "name is 'value', expected ..", with a value above 100 bytes cut. `expected` begins with the word "expected".
// If it contains kTimeForm and the value is a number above 0 without a unit, the text ends with "; did you mean 5s?".
std::string WrongValue(std::string_view name, std::string_view value, std::string_view expected);

// Returns a flag's line of the help: "  --name   help Default: x." and a newline. `value`: the default; "" and "false"
// are not shown.
std::string FlagHelp(std::string_view name, std::string_view help, std::string_view value);

// Returns the element of `names` that is spelled most like `name`; "" if all differ in more than a third of its
// letters, and in more than two.
std::string NearestName(std::string_view name, const std::vector<std::string_view>& names);

}  // namespace gdn
