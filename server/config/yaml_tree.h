// YAML as a tree with places, and what is wrong with it as a list.
//
// Anchors and aliases are faults, so a tree is no larger than its text; it is no deeper than kMostYamlDepth.
// Thread safety: free functions. Ownership: values.
//
//   std::vector<ConfigFault> faults;
//   const std::optional<YamlNode> root = ParseYaml(text, faults);
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gdn {

// Counted from 1; 0 and 0: the file as a whole.
struct ConfigPlace {
  int line = 0;
  int column = 0;
};

struct ConfigFault {
  ConfigPlace place;
  std::string what;

  // "gdn.yaml:3:7: what", or "gdn.yaml: what" where it is the file as a whole.
  std::string ToString(std::string_view path) const;
};

enum class YamlKind { kNothing, kScalar, kSequence, kMap };

// A value as it was written. In a map `children` are keys and values by turns.
struct YamlNode {
  YamlKind kind = YamlKind::kNothing;
  ConfigPlace place;
  std::string text;
  std::vector<YamlNode> children;
};

inline constexpr size_t kMostYamlDepth = 4;       // the file, quotas, principals, one of these
inline constexpr size_t kMostShownLetters = 100;  // of a key in a fault

// The tree of the text's one document; nothing and a fault where it is no YAML.
std::optional<YamlNode> ParseYaml(std::string_view text, std::vector<ConfigFault>& faults);

struct YamlEntry {
  std::string name;  // the key's text; with - for _ if keys are known
  const YamlNode* key = nullptr;
  const YamlNode* value = nullptr;
};

// The entries of a map, each once, whose keys are of `known` (none: any). The rest is added to `faults`. `where` names
// the map: "the file". `keys` says which keys there are.
std::vector<YamlEntry> MapEntries(const YamlNode& map, std::string_view where,
                                  const std::vector<std::string_view>& known, std::string_view keys,
                                  std::vector<ConfigFault>& faults);

// The text as a double-quoted scalar that ParseYaml reads back, of one line: quotes and control characters are escaped.
std::string QuotedYaml(std::string_view text);

}  // namespace gdn
