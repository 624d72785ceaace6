#include "server/config/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/flags/command_flags.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

// Returns the text on one line, with control characters as YAML's escapes. The fault may be such an invisible
// character.
std::string Shown(std::string_view text) {
  std::string shown;
  for (const char letter : text) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(letter))) {
      absl::StrAppendFormat(&shown, "\\x%02x", static_cast<unsigned char>(letter));
    } else {
      shown += letter;
    }
  }
  return shown;
}

// Returns the index of the first byte that is not text, or the size if there is none. Not text are control characters,
// and bytes that never occur in UTF-8, which yaml-cpp would take for UTF-16.
size_t FirstThatIsNoText(std::string_view text) {
  const auto bad = std::ranges::find_if(text, [](char letter) {
    const auto byte = static_cast<unsigned char>(letter);
    return (byte < 0x20 && letter != '\t' && letter != '\n' && letter != '\r') || byte == 0x7f || byte > 0xf7;
  });
  return static_cast<size_t>(bad - text.begin());
}

ConfigPlace MarkedPlace(const YAML::Mark& mark) {
  return mark.is_null() ? ConfigPlace{} : ConfigPlace{mark.line + 1, mark.column + 1};
}

// Builds a tree from the parser's events. An alias is a fault and is not followed, so a tree is no larger than its
// text.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::vector<ConfigFault>& faults) : faults_(faults) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    RefuseAnchor(mark, anchor);
    Add({YamlKind::kNothing, MarkedPlace(mark), "", {}});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    faults_.push_back({MarkedPlace(mark), "aliases (*name) are not supported; write the value itself"});
    Add({YamlKind::kScalar, MarkedPlace(mark), "", {}});
  }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor, const std::string& text) override {
    RefuseAnchor(mark, anchor);
    Add({YamlKind::kScalar, MarkedPlace(mark), text, {}});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(mark, anchor, YamlKind::kSequence);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(mark, anchor, YamlKind::kMap);
  }
  void OnMapEnd() override { Close(); }

  // Returns the tree. Call it after the parser's last event.
  YamlNode Take() { return std::move(root_); }

 private:
  void RefuseAnchor(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) {
      faults_.push_back({MarkedPlace(mark), "anchors (&name) are not supported; write the value itself"});
    }
  }
  void Open(const YAML::Mark& mark, YAML::anchor_t anchor, YamlKind kind) {
    RefuseAnchor(mark, anchor);
    if (open_.size() == kMostYamlDepth) {
      faults_.push_back(
          {MarkedPlace(mark), "the value is nested too deep; expected a flag's value or a list of values"});
    }
    open_.push_back({kind, MarkedPlace(mark), "", {}});
  }
  void Close() {
    YamlNode node = std::move(open_.back());
    open_.pop_back();
    Add(std::move(node));
  }
  void Add(YamlNode node) {
    if (open_.size() > kMostYamlDepth) return;  // Open has reported it
    if (open_.empty()) {
      root_ = std::move(node);
    } else {
      open_.back().children.push_back(std::move(node));
    }
  }

  std::vector<ConfigFault>& faults_;
  YamlNode root_;
  std::vector<YamlNode> open_;
};

}  // namespace

std::string ConfigFault::ToString(std::string_view path) const {
  const std::string shown = Shown(what);
  if (place.line == 0) return StrCat(path, ": ", shown);
  return StrCat(path, ":", place.line, ":", place.column, ": ", shown);
}

std::optional<YamlNode> ParseYaml(std::string_view text, std::vector<ConfigFault>& faults) {
  if (const size_t at = FirstThatIsNoText(text); at != text.size()) {
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    const size_t column = at - (text.substr(0, at).rfind('\n') + 1) + 1;
    faults.push_back({{static_cast<int>(line), static_cast<int>(column)},
                      absl::StrFormat("a byte 0x%02x, expected text in UTF-8", static_cast<unsigned char>(text[at]))});
    return std::nullopt;
  }
  // yaml-cpp throws if the text is not YAML. The exceptions are caught here.
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    TreeBuilder builder(faults);
    if (!parser.HandleNextDocument(builder)) return YamlNode{};
    YamlNode root = builder.Take();
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

std::vector<YamlEntry> MapEntries(const YamlNode& map, std::string_view where,
                                  const std::vector<std::string_view>& known, std::string_view keys,
                                  std::vector<ConfigFault>& faults) {
  std::vector<YamlEntry> entries;
  const auto fault = [&](const YamlNode& node, std::string what) { faults.push_back({node.place, std::move(what)}); };
  if (map.kind != YamlKind::kMap) fault(map, StrCat(where, " is no map, expected lines of KEY: VALUE"));
  for (size_t i = 0; map.kind == YamlKind::kMap && i + 1 < map.children.size(); i += 2) {
    const YamlNode& key = map.children[i];
    std::string name = key.text;
    if (!known.empty()) std::ranges::replace(name, '_', '-');
    const auto first = std::ranges::find(entries, name, &YamlEntry::name);
    if (key.kind != YamlKind::kScalar) {
      fault(key, StrCat("a key of ", where, " that is no text"));
    } else if (!known.empty() && std::ranges::find(known, std::string_view(name)) == known.end()) {
      const std::string nearest = NearestName(name, known);
      fault(key, StrCat("unknown key '", key.text.substr(0, kMostShownLetters), "' in ", where, ", ",
                        nearest.empty() ? StrCat("expected ", keys) : StrCat("did you mean '", nearest, "'?")));
    } else if (first != entries.end()) {
      fault(key, StrCat("'", name, "' stands twice in ", where, ", first in line ", first->key->place.line));
    } else {
      entries.push_back({std::move(name), &key, &map.children[i + 1]});
    }
  }
  return entries;
}

std::string QuotedYaml(std::string_view text) {
  return StrCat("\"", Shown(absl::StrReplaceAll(AbslView(text), {{"\\", "\\\\"}, {"\"", "\\\""}})), "\"");
}

}  // namespace gdn
