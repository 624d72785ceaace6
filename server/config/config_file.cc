#include "server/config/config_file.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

enum class Kind { kNothing, kScalar, kSequence, kMap };

// A value as it was written. In a map `children` are keys and values by turns.
struct Node {
  Kind kind = Kind::kNothing;
  ConfigPlace place;
  std::string text;
  std::vector<Node> children;
};

ConfigPlace MarkedPlace(const YAML::Mark& mark) {
  return mark.is_null() ? ConfigPlace{} : ConfigPlace{mark.line + 1, mark.column + 1};
}

constexpr size_t kMostDepth = 3;  // the file, a flag's list, its elements

// Makes a tree of the parser's events. An alias is a fault and never followed, so a tree is no larger than its text.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::vector<ConfigFault>& faults) : faults_(faults) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    RefuseAnchor(mark, anchor);
    Add({Kind::kNothing, MarkedPlace(mark), "", {}});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    faults_.push_back({MarkedPlace(mark), "an alias (*name), which is not taken; write the value itself"});
    Add({Kind::kScalar, MarkedPlace(mark), "", {}});
  }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor, const std::string& text) override {
    RefuseAnchor(mark, anchor);
    Add({Kind::kScalar, MarkedPlace(mark), text, {}});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(mark, anchor, Kind::kSequence);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(mark, anchor, Kind::kMap);
  }
  void OnMapEnd() override { Close(); }

  // Once every event has come.
  Node Take() { return std::move(root_); }

 private:
  void RefuseAnchor(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) faults_.push_back({MarkedPlace(mark), "an anchor (&name), which is not taken"});
  }
  void Open(const YAML::Mark& mark, YAML::anchor_t anchor, Kind kind) {
    RefuseAnchor(mark, anchor);
    if (open_.size() == kMostDepth) {
      faults_.push_back(
          {MarkedPlace(mark), "a value inside of a list's value; expected a flag's value or a list of them"});
    }
    open_.push_back({kind, MarkedPlace(mark), "", {}});
  }
  void Close() {
    Node node = std::move(open_.back());
    open_.pop_back();
    Add(std::move(node));
  }
  void Add(Node node) {
    if (open_.size() > kMostDepth) return;  // told of already
    if (open_.empty()) {
      root_ = std::move(node);
    } else {
      open_.back().children.push_back(std::move(node));
    }
  }

  std::vector<ConfigFault>& faults_;
  Node root_;
  std::vector<Node> open_;
};

// The tree of the text, or nothing and a fault.
std::optional<Node> ParseTree(std::string_view text, std::vector<ConfigFault>& faults) {
  // yaml-cpp tells of what is no YAML by exceptions; they end here.
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    TreeBuilder builder(faults);
    if (!parser.HandleNextDocument(builder)) return Node{};
    Node root = builder.Take();
    TreeBuilder more(faults);
    if (parser.HandleNextDocument(more)) {
      faults.push_back({more.Take().place, "a second YAML document (after ---), expected one"});
    }
    return root;
  } catch (const YAML::Exception& error) {
    faults.push_back({MarkedPlace(error.mark), StrCat("this is no YAML: ", error.msg)});
    return std::nullopt;
  }
}

// How many letters must be put in, taken out or changed.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t before = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = before + (a[i] == b[j] ? 0 : 1);
      before = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string FlagName(std::string_view key) { return absl::StrReplaceAll(AbslView(key), {{"-", "_"}}); }

constexpr size_t kMostKeyLetters = 100;  // of a key that one like it is looked for

std::string UnknownKey(std::string_view key, const ConfigKeys& keys) {
  const std::string name = FlagName(key.substr(0, kMostKeyLetters));
  std::string nearest;
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  for (const auto& [known, flag] : keys) {
    const size_t distance = EditDistance(name, known);
    if (distance < least) {
      least = distance;
      nearest = known;
    }
  }
  return StrCat("unknown key '", key.substr(0, kMostKeyLetters), "', ",
                nearest.empty() ? "expected the name of a flag without --; gdn_server --help lists them"
                                : StrCat("did you mean '", KeyName(nearest), "'?"));
}

// A flag's value as the command line has it: the text, or a list's elements with commas between.
std::optional<std::string> TextOf(std::string_view name, const Node& node, const absl::CommandLineFlag& flag,
                                  std::vector<ConfigFault>& faults) {
  const bool is_list = flag.IsOfType<std::vector<std::string>>();
  if (node.kind == Kind::kScalar) return node.text;
  if (node.kind == Kind::kNothing || !is_list) {
    faults.push_back({node.place, StrCat(KeyName(name), node.kind == Kind::kNothing
                                                            ? " has no value, expected one; \"\" is an empty one"
                                                            : " is a list, expected one value")});
    return std::nullopt;
  }
  std::vector<std::string> elements;
  bool good = true;
  const size_t step = node.kind == Kind::kMap ? 2 : 1;
  for (size_t i = 0; i < node.children.size(); i += step) {
    std::vector<std::string> parts;
    for (size_t j = i; j < i + step && j < node.children.size(); ++j) {
      const Node& part = node.children[j];
      if (part.kind == Kind::kScalar && part.text.find(',') == std::string::npos) {
        parts.push_back(part.text);
        continue;
      }
      good = false;
      faults.push_back({part.place, part.kind == Kind::kScalar ? "an element with a comma, which parts elements"
                                                               : "an element that is no text, expected text"});
    }
    elements.push_back(absl::StrJoin(parts, "="));
  }
  if (!good) return std::nullopt;
  return absl::StrJoin(elements, ",");
}

// What a flag that took no value wanted: Abseil says that of types of our own alone.
std::string Expected(const absl::CommandLineFlag& flag, const std::string& error) {
  if (flag.IsOfType<bool>()) return "expected true or false";
  if (flag.IsOfType<int32_t>()) return "expected a whole number of 32 bits";
  if (flag.IsOfType<absl::Duration>()) return "expected a duration such as 30s, 5m or 0";
  const size_t ours = error.find("expected");
  return ours == std::string::npos ? error : error.substr(ours);
}

// A URL without the password in it.
std::string WithoutPassword(std::string_view text) {
  const size_t scheme = text.find("://");
  if (scheme == std::string_view::npos) return std::string(text);
  const size_t begin = scheme + 3;
  const size_t at = text.rfind('@');
  if (at == std::string_view::npos || at < begin) return std::string(text);
  return StrCat(text.substr(0, begin), "[hidden]", text.substr(at));
}

}  // namespace

std::string ConfigFault::ToString(std::string_view path) const {
  if (place.line == 0) return StrCat(path, ": ", what);
  return StrCat(path, ":", place.line, ":", place.column, ": ", what);
}

ConfigFile ParseConfig(std::string_view text, const ConfigKeys& keys, std::vector<ConfigFault>& faults) {
  ConfigFile file;
  if (text.size() > kMostConfigBytes) {
    faults.push_back({{}, StrCat("the file is larger than ", kMostConfigBytes, " bytes, the most that is read")});
    return file;
  }
  const std::optional<Node> root = ParseTree(text, faults);
  if (!root.has_value() || root->kind == Kind::kNothing) return file;
  if (root->kind != Kind::kMap) {
    faults.push_back({root->place, "the file is no map, expected lines of KEY: VALUE"});
    return file;
  }
  std::map<std::string, ConfigPlace> seen;
  for (size_t i = 0; i + 1 < root->children.size(); i += 2) {
    const Node& key = root->children[i];
    const Node& value = root->children[i + 1];
    const std::string name = FlagName(key.text);
    const auto known = keys.find(name);
    if (key.kind != Kind::kScalar || known == keys.end()) {
      faults.push_back({key.place, UnknownKey(key.text, keys)});
      continue;
    }
    const auto [first, is_new] = seen.emplace(name, key.place);
    if (!is_new) {
      faults.push_back({key.place, StrCat(KeyName(name), " stands twice, first in line ", first->second.line)});
      continue;
    }
    std::optional<std::string> text_of = TextOf(name, value, *known->second, faults);
    if (text_of.has_value()) file[name] = {*std::move(text_of), value.place.line > 0 ? value.place : key.place};
  }
  return file;
}

ConfigFile ReadConfig(const std::string& path, const ConfigKeys& keys, std::vector<ConfigFault>& faults) {
  std::ifstream stream(path, std::ios::binary);
  std::string text(kMostConfigBytes + 1, '\0');
  if (stream.is_open()) stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!stream.is_open() || stream.bad() || (stream.fail() && !stream.eof())) {
    faults.push_back({{}, "the file of --config cannot be read"});
    return {};
  }
  text.resize(static_cast<size_t>(stream.gcount()));
  return ParseConfig(text, keys, faults);
}

void ApplyConfig(const ConfigFile& file, const ConfigKeys& keys, const std::set<std::string>& but_not,
                 std::vector<ConfigFault>& faults) {
  for (const auto& [name, value] : file) {
    absl::CommandLineFlag& flag = *keys.at(name);
    const std::string before = flag.CurrentValue();
    std::string error;
    if (!flag.ParseFrom(value.text, &error)) {
      faults.push_back({value.place, StrCat(KeyName(name), " is '", value.text, "', ", Expected(flag, error))});
    } else if (but_not.contains(name)) {
      flag.ParseFrom(before, &error);
    }
  }
}

ConfigPlace PlaceOf(std::string_view complaint, const ConfigFile& file) {
  for (size_t at = complaint.find("--"); at != std::string_view::npos; at = complaint.find("--", at + 2)) {
    const std::string_view rest = complaint.substr(at + 2);
    const auto end = std::ranges::find_if(rest, [](char c) { return !absl::ascii_isalnum(c) && c != '-' && c != '_'; });
    const auto value = file.find(FlagName({rest.begin(), end}));
    if (value != file.end()) return value->second.place;
  }
  return {};
}

std::string PrintConfig(const ConfigKeys& keys) {
  std::string out;
  for (const auto& [name, flag] : keys) {
    out += StrCat(
        KeyName(name), ": \"",
        absl::StrReplaceAll(WithoutPassword(flag->CurrentValue()), {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}),
        "\"\n");
  }
  return out;
}

std::string KeyName(std::string_view flag) { return absl::StrReplaceAll(AbslView(flag), {{"_", "-"}}); }

}  // namespace gdn
