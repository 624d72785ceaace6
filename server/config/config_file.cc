#include "server/config/config_file.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/flags/command_flags.h"
#include "base/string_cat.h"
#include "base/user_file.h"
#include "server/config/quota_section.h"

namespace gdn {
namespace {

std::string FlagName(std::string_view key) { return absl::StrReplaceAll(AbslView(key), {{"-", "_"}}); }

std::string UnknownKey(std::string_view key, const ConfigKeys& keys) {
  std::vector<std::string_view> names;
  for (const auto& [name, flag] : keys) names.push_back(name);
  const std::string nearest = NearestName(FlagName(key), names);
  return StrCat("unknown key '", key.substr(0, kMostShownLetters), "', ",
                nearest.empty() ? "expected the name of a flag without --; gdn_server --help lists them"
                                : StrCat("did you mean '", KeyName(nearest), "'?"));
}

// A flag's value as the command line has it: the text, or a list's elements with commas between.
std::optional<std::string> TextOf(std::string_view name, const YamlNode& node, const absl::CommandLineFlag& flag,
                                  std::vector<ConfigFault>& faults) {
  const bool is_list = flag.IsOfType<std::vector<std::string>>();
  if (node.kind == YamlKind::kScalar) return node.text;
  if (node.kind == YamlKind::kMap && flag.IsOfType<QuotaSettings>()) {
    const size_t before = faults.size();
    const QuotaSettings quotas = ReadQuotas(node, faults);
    return faults.size() == before ? std::optional(PrintQuotas(quotas)) : std::nullopt;
  }
  if (node.kind == YamlKind::kNothing || !is_list) {
    faults.push_back({node.place, StrCat(KeyName(name), node.kind == YamlKind::kNothing
                                                            ? " has no value, expected one; \"\" is an empty one"
                                                            : " is a list, expected one value")});
    return std::nullopt;
  }
  std::vector<std::string> elements;
  bool good = true;
  const size_t step = node.kind == YamlKind::kMap ? 2 : 1;
  for (size_t i = 0; i < node.children.size(); i += step) {
    std::vector<std::string> parts;
    for (size_t j = i; j < i + step && j < node.children.size(); ++j) {
      const YamlNode& part = node.children[j];
      if (part.kind == YamlKind::kScalar && part.text.find(',') == std::string::npos) {
        parts.push_back(part.text);
        continue;
      }
      good = false;
      faults.push_back({part.place, part.kind == YamlKind::kScalar ? "an element with a comma, which parts elements"
                                                                   : "an element that is no text, expected text"});
    }
    elements.push_back(absl::StrJoin(parts, "="));
  }
  if (!good) return std::nullopt;
  return absl::StrJoin(elements, ",");
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

ConfigFile ParseConfig(std::string_view text, const ConfigKeys& keys, std::vector<ConfigFault>& faults) {
  ConfigFile file;
  if (text.size() > kMostConfigBytes) {
    faults.push_back({{}, StrCat("the file is larger than ", kMostConfigBytes, " bytes, the most that is read")});
    return file;
  }
  const std::optional<YamlNode> root = ParseYaml(text, faults);
  if (!root.has_value() || root->kind == YamlKind::kNothing) return file;
  if (root->kind != YamlKind::kMap) {
    faults.push_back({root->place, "the file is no map, expected lines of KEY: VALUE"});
    return file;
  }
  std::map<std::string, ConfigPlace> seen;
  for (size_t i = 0; i + 1 < root->children.size(); i += 2) {
    const YamlNode& key = root->children[i];
    const YamlNode& value = root->children[i + 1];
    const std::string name = FlagName(key.text);
    const auto known = keys.find(name);
    if (key.kind != YamlKind::kScalar || known == keys.end()) {
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
  const absl::StatusOr<std::string> text = ReadUserFile(path, kMostConfigBytes);
  if (text.ok()) return ParseConfig(*text, keys, faults);
  faults.push_back({{}, StrCat("the file of --config: ", text.status().message())});
  return {};
}

void ApplyConfig(const ConfigFile& file, const ConfigKeys& keys, const std::set<std::string>& but_not,
                 std::vector<ConfigFault>& faults) {
  for (const auto& [name, value] : file) {
    absl::CommandLineFlag& flag = *keys.at(name);
    const std::string before = flag.CurrentValue();
    std::string error;
    if (!flag.ParseFrom(value.text, &error)) {
      faults.push_back(
          {value.place, StrCat(KeyName(name), " is '", value.text, "', ", ExpectedForm(flag, value.text, error))});
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
    out += StrCat(KeyName(name), ": ", QuotedYaml(WithoutPassword(flag->CurrentValue())), "\n");
  }
  return out;
}

std::string KeyName(std::string_view flag) { return absl::StrReplaceAll(AbslView(flag), {{"_", "-"}}); }

}  // namespace gdn
