// The file of --config: flags and their values, in YAML.
//
//   listen: [127.0.0.1:50061, "unix:/run/gdn/gdn.sock"]
//   model: {qwen: /models/Qwen3-Next-80B-A3B-Instruct}
//   checkpoint-every: 30s
//
// A list is a sequence, and one of NAME=VALUE may be a map; quotas are a map of their own (quota_section.h). The file
// is read whole: every fault in it is told, with its place.
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

// The flags that a file may hold, by name, with -. The file may write _ for it.
using ConfigKeys = std::map<std::string, ValueShape>;

struct ConfigValue {
  std::string text;  // as the command line would have it
  ConfigPlace place;
};

using ConfigFile = std::map<std::string, ConfigValue, std::less<>>;  // by name, with -

// Returns what is good in the file or the text, and adds the rest to `faults`: a file that cannot be read, is no YAML,
// or has more than kMostConfigBytes; anchors and aliases, which nothing here needs; unknown keys, with the nearest that
// there is; keys that stand twice; lists and maps where one text is expected. Values are not parsed.
ConfigFile ReadConfig(const std::string& path, const ConfigKeys& keys, std::vector<ConfigFault>& faults);
ConfigFile ParseConfig(std::string_view text, const ConfigKeys& keys, std::vector<ConfigFault>& faults);

// Where a complaint about flags belongs: at the first `--name` in it that the file gives, else at the file as a whole.
ConfigPlace PlaceOf(std::string_view complaint, const ConfigFile& file);

// Returns a file that says the same as `values`, which are texts by name. A password in a URL is left out of it.
std::string PrintConfig(const std::map<std::string, std::string>& values);

}  // namespace gdn
