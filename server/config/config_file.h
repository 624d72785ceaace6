// The file of --config: flags and their values, in YAML.
//
//   listen: [127.0.0.1:50061, "unix:/run/gdn/gdn.sock"]
//   model: {qwen: /models/Qwen3-Next-80B-A3B-Instruct}
//   checkpoint-every: 30s
//
// A list is a YAML sequence. A list of NAME=VALUE may also be a map. Quotas are a map of their own (quota_section.h).
// Every fault in the file is reported with its line and column; only broken YAML syntax ends the check early.
// Thread safety: free functions. Ownership: values.
//
//   std::vector<ConfigFault> faults;
//   const ConfigFile file = ReadConfig("gdn.yaml", {{"max-batch", ValueShape::kText}}, faults);
//   for (const ConfigFault& fault : faults) std::cerr << fault.ToString("gdn.yaml") << "\n";
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "server/config/value_form.h"
#include "server/config/yaml_tree.h"

namespace gdn {

inline constexpr size_t kMostConfigBytes = size_t{256} << 10;

// The flags that a file may hold, by name, with the shapes of their values. Names are written with "-"; the file may
// use "_" instead.
using ConfigKeys = std::map<std::string, ValueShape>;

struct ConfigValue {
  std::string text;  // the value, in the form of the command line
  ConfigPlace place;
};

using ConfigFile = std::map<std::string, ConfigValue, std::less<>>;  // by flag name, with "-"

// Return the valid flags and values of the file or text, and add all faults to `faults`. It is a fault if the file
// cannot be read, is not YAML or has more than kMostConfigBytes. Other faults: anchors and aliases, which are not
// supported; unknown keys, with the nearest known key; keys that occur twice; lists and maps if one text is expected;
// elements with a comma. Only a map of quotas is parsed; all other values stay texts.
ConfigFile ReadConfig(const std::string& path, const ConfigKeys& keys, std::vector<ConfigFault>& faults);
ConfigFile ParseConfig(std::string_view text, const ConfigKeys& keys, std::vector<ConfigFault>& faults);

// Returns the line and column at which the file sets a flag that the message `complaint` names as "--name": the first
// such flag in the message that the file sets. If it sets none, returns the place of the file as a whole, 0 and 0.
ConfigPlace PlaceOf(std::string_view complaint, const ConfigFile& file);

// Returns the YAML text of a file that sets `values`, which maps flag names to texts of the command line. The user and
// password in a URL are replaced by [hidden].
std::string PrintConfig(const std::map<std::string, std::string>& values);

}  // namespace gdn
