#include "server/config/config_file.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/files/user_file.h"
#include "base/string_cat.h"
#include "server/config/quota_section.h"

namespace gdn {
namespace {

// Returns the flag's value in the form of the command line: one text, or the elements of a list separated by commas. If
// the value has the wrong shape, returns nothing and adds to `faults`.
std::optional<std::string> TextOf(std::string_view name, const YamlNode& node, ValueShape shape,
                                  std::vector<ConfigFault>& faults) {
  if (node.kind == YamlKind::kScalar) return node.text;
  if (node.kind == YamlKind::kMap && shape == ValueShape::kQuotaMap) {
    const size_t before = faults.size();
    const QuotaSettings quotas = ReadQuotas(node, faults);
    return faults.size() == before ? std::optional(PrintQuotas(quotas)) : std::nullopt;
  }
  if (node.kind == YamlKind::kNothing || shape != ValueShape::kList) {
    faults.push_back({node.place, StrCat(name, node.kind == YamlKind::kNothing
                                                   ? " has no value; expected a value, or \"\" for an empty one"
                                                   : " is a list, expected one value")});
    return std::nullopt;
  }
  std::string text;
  const size_t before = faults.size();
  for (size_t i = 0; i < node.children.size(); ++i) {
    const YamlNode& part = node.children[i];
    const bool is_text = part.kind == YamlKind::kScalar;
    if (!is_text || part.text.find(',') != std::string::npos) {
      faults.push_back({part.place, is_text ? "a list element has a comma, which separates elements; write two elements"
                                            : "a list element is a list or a map; expected text"});
    }
    text += StrCat(i == 0 ? "" : node.kind == YamlKind::kMap && i % 2 == 1 ? "=" : ",", part.text);
  }
  return faults.size() == before ? std::optional(text) : std::nullopt;
}

// Replaces the user and password of a URL by [hidden]. Returns other texts as they are.
std::string WithoutPassword(std::string_view text) {
  const size_t scheme = text.find("://"), at = text.rfind('@');
  if (scheme == std::string_view::npos || at == std::string_view::npos || at < scheme + 3) return std::string(text);
  return StrCat(text.substr(0, scheme + 3), "[hidden]", text.substr(at));
}

}  // namespace

ConfigFile ParseConfig(std::string_view text, const ConfigKeys& keys, std::vector<ConfigFault>& faults) {
  ConfigFile file;
  if (text.size() > kMostConfigBytes) {
    faults.push_back({{}, StrCat("the file is larger than ", kMostConfigBytes, " bytes, the most that is read")});
    return file;
  }
  const std::optional<YamlNode> root = ParseYaml(text, faults);
  if (!root.has_value() || root->kind == YamlKind::kNothing) return file;
  std::vector<std::string_view> known;
  for (const auto& [name, shape] : keys) known.push_back(name);
  for (const auto& [name, key, value] :
       MapEntries(*root, "the file", known, "the name of a flag without --; gdn_server --help lists them", faults)) {
    std::optional<std::string> text_of = TextOf(name, *value, keys.at(name), faults);
    if (text_of.has_value()) file[name] = {*std::move(text_of), value->place.line > 0 ? value->place : key->place};
  }
  return file;
}

ConfigFile ReadConfig(const std::string& path, const ConfigKeys& keys, std::vector<ConfigFault>& faults) {
  const absl::StatusOr<std::string> text = ReadUserFile(path, kMostConfigBytes);
  if (text.ok()) return ParseConfig(*text, keys, faults);
  faults.push_back({{}, StrCat("the file of --config: ", text.status().message())});
  return {};
}

ConfigPlace PlaceOf(std::string_view complaint, const ConfigFile& file) {
  for (size_t at = complaint.find("--"); at != std::string_view::npos; at = complaint.find("--", at + 2)) {
    const std::string_view rest = complaint.substr(at + 2);
    const auto end = std::ranges::find_if(rest, [](char c) { return !absl::ascii_isalnum(c) && c != '-'; });
    const auto value = file.find(std::string_view(rest.begin(), end));
    if (value != file.end()) return value->second.place;
  }
  return {};
}

std::string PrintConfig(const std::map<std::string, std::string>& values) {
  std::string out;
  for (const auto& [name, text] : values) out += StrCat(name, ": ", QuotedYaml(WithoutPassword(text)), "\n");
  return out;
}

}  // namespace gdn
