// The command line and the file of --config, together.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "base/flags/command_flags.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/version/version.h"
#include "server/config/config_file.h"
#include "server/flags.h"

ABSL_DECLARE_FLAG(std::string, config);
ABSL_DECLARE_FLAG(bool, check_config);

namespace gdn {
namespace {

constexpr char kUsage[] =
    "Serves Gated DeltaNet layers over gRPC (gdn.v1.GdnService, with health and reflection).\n\n"
    "  gdn_server --model qwen=/models/Qwen3-Next-80B-A3B-Instruct --listen 0.0.0.0:50061 --tls-cert CRT --tls-key "
    "KEY\n"
    "  gdn_server --listen 127.0.0.1:0 --port-file /tmp/port        # no model: operator sessions only\n"
    "  gdn_server --listen 127.0.0.1:50061 --listen unix:/run/gdn/gdn.sock\n"
    "  gdn_server --model qwen=DIR --disk-dir /var/lib/gdn --checkpoint-every-tokens 256   # survives a crash\n\n"
    "SIGTERM and SIGINT drain: no new step is taken, accepted ones end, sessions are made durable where there is a "
    "place "
    "for it, then the server stops: with code 0, or 3 where an accepted call or a session's last checkpoint did not "
    "end.";

// Names with - become names with _, and the values of all --model flags become one list, those of --adapter and
// --listen others.
std::vector<std::string> NormalizedArguments(int argc, char** argv) {
  std::vector<std::string> arguments;
  std::map<std::string, std::optional<std::string>> lists = {{"adapter", {}}, {"listen", {}}, {"model", {}}};
  bool positional = false;
  for (int i = 0; i < argc; ++i) {
    std::string argument = argv[i];
    positional |= argument == "--";
    if (i == 0 || positional || argument.size() < 2 || argument[0] != '-') {
      arguments.push_back(std::move(argument));
      continue;
    }
    const size_t end = std::min(argument.find('='), argument.size());
    const size_t name = argument[1] == '-' ? 2 : 1;
    std::replace(argument.begin() + static_cast<std::ptrdiff_t>(name),
                 argument.begin() + static_cast<std::ptrdiff_t>(end), '-', '_');
    const auto list = lists.find(argument.substr(name, end - name));
    if (list == lists.end() || (end == argument.size() && i + 1 == argc)) {
      arguments.push_back(std::move(argument));  // another, or one without a value, of which the parser tells
      continue;
    }
    const std::string value = end < argument.size() ? argument.substr(end + 1) : argv[++i];
    list->second = list->second.has_value() ? *list->second + "," + value : value;
  }
  for (const auto& [name, values] : lists) {
    if (values.has_value()) arguments.push_back(StrCat("--", name, "=", *values));
  }
  return arguments;
}

bool IsOurs(const absl::CommandLineFlag& flag) { return absl::EndsWith(flag.Filename(), "server/flags.cc"); }

// Every flag of server/flags.cc but those about the file.
ConfigKeys FileKeys() {
  ConfigKeys keys;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (IsOurs(*flag) && name != "config" && name != "check_config") keys.emplace(std::string(name), flag);
  }
  return keys;
}

struct GivenFlags {
  std::set<std::string> names;
  std::string config;  // the last value of --config
};

// The command line's own flags. The line is read again after the file, and so wins over the file.
GivenFlags FindGiven(const std::vector<std::string>& arguments) {
  GivenFlags given;
  for (size_t i = 1; i < arguments.size() && arguments[i] != "--"; ++i) {
    const std::string& argument = arguments[i];
    if (!absl::StartsWith(argument, "-")) continue;
    const size_t begin = absl::StartsWith(argument, "--") ? 2 : 1;
    const size_t end = std::min(argument.find('='), argument.size());
    const std::string name = argument.substr(begin, end - begin);
    given.names.insert(absl::StartsWith(name, "no") ? name.substr(2) : name);
    given.names.insert(name);
    if (name != "config") continue;
    given.config = end < argument.size() ? argument.substr(end + 1) : i + 1 < arguments.size() ? arguments[i + 1] : "";
  }
  return given;
}

GivenFlags& Given() {
  static GivenFlags given;
  return given;
}

constexpr size_t kMostToldFaults = 100;

// Nothing is wrong, or all that is, a line each, in the order of the file.
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
    // What has no place in the file is of the command line, or says itself that it is of the file.
    const bool of_flags = fault.place.line == 0 && absl::StartsWith(fault.what, "--");
    lines.push_back(path.empty() || of_flags ? fault.what : fault.ToString(path));
  }
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

// The options that the flags make; what is wrong with them is put where the file says it.
ServerOptions CheckedOptions(const ConfigFile& file, std::vector<ConfigFault>& faults) {
  ConfigFile in_force = file;
  for (const std::string& name : Given().names) in_force.erase(name);
  std::vector<std::string> complaints;
  ServerOptions options = OptionsOfFlags(complaints);
  for (std::string& complaint : complaints) {
    const ConfigPlace place = PlaceOf(complaint, in_force);
    faults.push_back({place, std::move(complaint)});
  }
  return options;
}

}  // namespace

absl::StatusOr<ServerOptions> ParseServerFlags(int argc, char** argv) {
  const std::vector<std::string> arguments = NormalizedArguments(argc, argv);
  Given() = FindGiven(arguments);
  const ConfigKeys keys = FileKeys();
  const std::string& path = Given().config;
  std::vector<ConfigFault> faults;
  ConfigFile file;
  if (!path.empty()) {
    file = ReadConfig(path, keys, faults);
    ApplyConfig(file, keys, Given().names, faults);
  }
  GDN_ASSIGN_OR_RETURN(const CommandFlags line, SetFlags({arguments.begin() + 1, arguments.end()}, IsOurs));
  if (line.help || line.version) {
    std::cout << (line.help ? StrCat(kUsage, "\n\nFlags:\n", FlagsHelp(IsOurs)) : VersionText("gdn_server"))
              << std::flush;
    std::exit(0);
  }
  if (!line.positional.empty()) {
    return absl::InvalidArgumentError(StrCat("unexpected argument '", line.positional[0], "'; flags begin with --"));
  }
  if (path.empty() && Given().names.contains("config")) {
    return absl::InvalidArgumentError("--config is empty, expected a file");
  }
  ServerOptions options = CheckedOptions(file, faults);
  const absl::Status status = StatusOfFaults(std::move(faults), path);
  if (!status.ok()) return status;
  return options;
}

absl::StatusOr<std::vector<FlagChange>> ReloadConfig(const std::set<std::string>& live) {
  const ConfigKeys keys = FileKeys();
  std::map<std::string, std::string> before;
  std::vector<ConfigFault> faults;
  std::string error;
  for (const auto& [name, flag] : keys) {
    before[name] = flag->CurrentValue();
    if (!Given().names.contains(name)) flag->ParseFrom(flag->DefaultValue(), &error);
  }
  const ConfigFile file = ReadConfig(Given().config, keys, faults);
  ApplyConfig(file, keys, Given().names, faults);
  CheckedOptions(file, faults);
  const absl::Status status = StatusOfFaults(std::move(faults), Given().config);

  std::vector<FlagChange> changes;
  for (const auto& [name, flag] : keys) {
    if (flag->CurrentValue() == before[name]) continue;
    const bool takes_effect = status.ok() && live.contains(name);
    changes.push_back({.flag = name, .name = KeyName(name), .takes_effect = takes_effect});
    if (!takes_effect) flag->ParseFrom(before[name], &error);
  }
  if (!status.ok()) return status;
  return changes;
}

std::string ConfigPath() { return Given().config; }

bool OnlyCheckConfig() { return absl::GetFlag(FLAGS_check_config); }

std::string PrintFlags() { return PrintConfig(FileKeys()); }

}  // namespace gdn
