#include "server/options/read_options.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/config/config_file.h"
#include "server/options/option_table.h"

namespace gdn {
namespace {

constexpr size_t kMostToldFaults = 100;

// Returns OK if there are no faults. Otherwise lists them, one on a line, in the order of the file.
absl::Status StatusOfFaults(std::vector<ConfigFault> faults, const std::string& path) {
  if (faults.empty()) return absl::OkStatus();
  std::ranges::stable_sort(faults, {},
                           [](const ConfigFault& fault) { return std::pair(fault.place.line, fault.place.column); });
  std::vector<std::string> lines;
  for (const ConfigFault& fault : faults) {
    if (lines.size() == kMostToldFaults) {
      lines.push_back(StrCat("and ", faults.size() - kMostToldFaults, " more"));
      break;
    }
    // A fault without a place belongs to the command line, unless its text says that it is about the file.
    const bool of_flags = fault.place.line == 0 && absl::StartsWith(fault.what, "--");
    lines.push_back(path.empty() || of_flags ? fault.what : fault.ToString(path));
  }
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

ConfigKeys KeysOfFile() {
  ConfigKeys keys;
  for (const auto& [name, option] : Options()) {
    if (option.use != OptionUse::kNotInFile) keys.emplace(name, option.shape);
  }
  return keys;
}

}  // namespace

CommandFlags ReadCommandLine(const std::vector<std::string>& arguments) {
  FlagNames names;
  for (const auto& [name, option] : Options()) names.emplace(name, option.shape == ValueShape::kSwitch);
  CommandFlags line = SplitArguments(arguments, names);
  if (line.status.ok() && !line.positional.empty()) {
    line.status =
        absl::InvalidArgumentError(StrCat("unexpected argument '", line.positional[0], "'; flags begin with --"));
  }
  return line;
}

bool ChecksConfig(const CommandFlags& line) {
  bool check = false;
  for (const auto& [name, text] : line.values) {
    if (name == "check-config") ParseAsFlag(text, check);
  }
  return check;
}

absl::StatusOr<ServerOptions> ReadOptions(const CommandFlags& line) {
  GDN_RETURN_IF_ERROR(line.status);
  std::map<std::string, std::string> given;
  for (const auto& [name, text] : line.values) {
    const auto [value, is_new] = given.emplace(name, text);
    if (!is_new)
      value->second = Options().at(name).use == OptionUse::kRepeats ? StrCat(value->second, ",", text) : text;
  }
  const std::string path = given.contains("config") ? given.at("config") : "";
  if (path.empty() && given.contains("config")) return absl::InvalidArgumentError("--config is empty, expected a file");
  ServerOptions options;
  std::vector<ConfigFault> faults;
  const auto read = [&](const std::string& name, const std::string& text, const char* dashes, ConfigPlace place) {
    const std::string expected = Options().at(name).read(text, options);
    if (!expected.empty()) faults.push_back({place, StrCat(dashes, WrongValue(name, text, expected))});
  };
  ConfigFile file = path.empty() ? ConfigFile() : ReadConfig(path, KeysOfFile(), faults);
  for (const auto& [name, value] : file) read(name, value.text, "", value.place);
  for (const auto& [name, text] : given) {
    read(name, text, "--", {});
    file.erase(name);
  }
  for (std::string& fault : OptionFaults(options)) {
    const ConfigPlace place = PlaceOf(fault, file);
    faults.push_back({place, std::move(fault)});
  }
  GDN_RETURN_IF_ERROR(StatusOfFaults(std::move(faults), path));
  return options;
}

std::vector<OptionChange> TakeLiveChanges(ServerOptions& options, const ServerOptions& next) {
  std::vector<OptionChange> changes;
  for (const auto& [name, option] : Options()) {
    const std::string text = option.print(next);
    if (option.use == OptionUse::kNotInFile || text == option.print(options)) continue;
    changes.push_back({.name = name, .takes_effect = option.use == OptionUse::kLive});
    if (changes.back().takes_effect) option.read(text, options);
  }
  return changes;
}

std::string OptionsHelp() {
  std::string text;
  for (const auto& [name, option] : Options()) text += FlagHelp(name, option.help, option.print(ServerOptions()));
  return text;
}

std::string PrintOptions(const ServerOptions& options) {
  std::map<std::string, std::string> values;
  for (const auto& [name, shape] : KeysOfFile()) values.emplace(name, Options().at(name).print(options));
  return PrintConfig(values);
}

}  // namespace gdn
