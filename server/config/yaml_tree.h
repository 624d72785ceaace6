// Parses YAML into a tree with lines and columns, and returns what is wrong with the text as a list of faults.
//
// Anchors and aliases are faults, so a tree is no larger than its text. It is no deeper than kMostYamlDepth.
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

// A place in the file, with line and column counted from 1. 0 and 0 stand for the file as a whole.
struct ConfigPlace {
  int line = 0;
  int column = 0;
};

struct ConfigFault {
  ConfigPlace place;
  std::string what;

  // Returns "gdn.yaml:3:7: what", or "gdn.yaml: what" if the place is the file as a whole.
  std::string ToString(std::string_view path) const;
};

enum class YamlKind { kNothing, kScalar, kSequence, kMap };

// A value as it was written: `text` for a scalar, else `children`. Those of a map are its keys and values in turn.
struct YamlNode {
  YamlKind kind = YamlKind::kNothing;
  ConfigPlace place;
  std::string text;
  std::vector<YamlNode> children;
};

inline constexpr size_t kMostYamlDepth = 4;       // levels: the file, quotas, principals, one principal
inline constexpr size_t kMostShownLetters = 100;  // most bytes of a key or value that a fault shows

// Returns the tree of the text's single document; a node kNothing if there is none. If the text is not YAML in UTF-8,
// returns nullopt and adds a fault. Anchors, aliases, values nested too deep and a second document only add faults.
std::optional<YamlNode> ParseYaml(std::string_view text, std::vector<ConfigFault>& faults);

struct YamlEntry {
  std::string name;  // the key's text; if keys are known, with "-" for "_"
  const YamlNode* key = nullptr;
  const YamlNode* value = nullptr;
};

// Returns the entries of `map` that have a key in `known` (if `known` is empty: any key), each key once, in order. They
// point into `map`. Adds a fault for all others, and if `map` is no map. `where` names the map in a fault: "the file".
// `keys` says there which keys are expected.
std::vector<YamlEntry> MapEntries(const YamlNode& map, std::string_view where,
                                  const std::vector<std::string_view>& known, std::string_view keys,
                                  std::vector<ConfigFault>& faults);

// Returns the text as a double-quoted scalar on one line, which ParseYaml reads back. Quotes and control characters are
// escaped.
std::string QuotedYaml(std::string_view text);

}  // namespace gdn
