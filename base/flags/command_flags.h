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

#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gdn {

struct CommandFlags {
  std::vector<std::string> positional;  // what is not a flag; everything after "--"
  bool help = false;                    // --help or -h
  bool version = false;                 // --version, unless a flag has that name
};

using TakesFlag = absl::FunctionRef<bool(const absl::CommandLineFlag& flag)>;

// Sets the flags of `arguments`, the program's name left out: --name=value, --name value, --name and --noname of a
// bool, each also with one dash, and with - for _ in names. INVALID_ARGUMENT for a flag that does not exist or that
// `takes` refuses, with the nearest that there is, and for a value that cannot be parsed, with the form that was
// expected.
absl::StatusOr<CommandFlags> SetFlags(const std::vector<std::string>& arguments, TakesFlag takes);

// The form of value that a flag takes, given a value that it refused and what its parser said: "expected a time with
// its unit, such as 500ms, 30s or 5m, or 0; did you mean 5s?".
std::string ExpectedForm(const absl::CommandLineFlag& flag, std::string_view value, std::string_view error);

// "  --name   help Default: x." and a newline.
std::string FlagHelp(const absl::CommandLineFlag& flag);
// The help of all flags that are taken, by name.
std::string FlagsHelp(TakesFlag takes);

// The one that `name` was probably meant to be; "" if none is near.
std::string NearestName(std::string_view name, const std::vector<std::string_view>& names);

}  // namespace gdn
