// The file of --config: flags and their values, in YAML.
//
//   listen: [127.0.0.1:50061, "unix:/run/gdn/gdn.sock"]
//   model: {qwen: /models/Qwen3-Next-80B-A3B-Instruct}
//   checkpoint-every: 30s
//
// Which flags there are, of which type, and what a value looks like is what Abseil's flags know; there is no second
// list. A list is a sequence, and one of NAME=VALUE may be a map; quotas are a map of their own (quota_section.h). The
// file is read whole: every fault in it is told,
// with the place where it is.
// Thread safety: free functions; ApplyConfig sets flags, one thread at a time. Ownership: values.
//
//   std::vector<ConfigFault> faults;
//   const ConfigFile file = ReadConfig("gdn.yaml", keys, faults);
//   ApplyConfig(file, keys, /*but_not=*/{"listen"}, faults);
//   for (const ConfigFault& fault : faults) std::cerr << fault.ToString("gdn.yaml") << "\n";
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "server/config/yaml_tree.h"

namespace gdn {

inline constexpr size_t kMostConfigBytes = size_t{256} << 10;

// The flags that a file may hold, by name, with _ as Abseil has them. The file may write - for it.
using ConfigKeys = std::map<std::string, absl::CommandLineFlag*>;

struct ConfigValue {
  std::string text;  // as the command line would have it
  ConfigPlace place;
};

using ConfigFile = std::map<std::string, ConfigValue>;  // by name, with _

// What is good in the file or the text; what is not is added to `faults`: what cannot be read, is no YAML, or is more
// than kMostConfigBytes; anchors and aliases, which nothing here needs; unknown keys, with the nearest that there is;
// keys that stand twice; values of a wrong form. Types are not looked at: ApplyConfig does that.
ConfigFile ReadConfig(const std::string& path, const ConfigKeys& keys, std::vector<ConfigFault>& faults);
ConfigFile ParseConfig(std::string_view text, const ConfigKeys& keys, std::vector<ConfigFault>& faults);

// Gives each flag its value, as the command line would; those in `but_not` are tried and keep the value that they have.
// A value that a flag does not take is added to `faults`.
void ApplyConfig(const ConfigFile& file, const ConfigKeys& keys, const std::set<std::string>& but_not,
                 std::vector<ConfigFault>& faults);

// Where a complaint about flags belongs: at the first `--name` in it that the file gives, else at the file as a whole.
ConfigPlace PlaceOf(std::string_view complaint, const ConfigFile& file);

// All flags with their values, as a file that says the same. A password in a URL is left out of it.
std::string PrintConfig(const ConfigKeys& keys);

// A flag's name as the command line's help and a file have it: with -.
std::string KeyName(std::string_view flag);

}  // namespace gdn
