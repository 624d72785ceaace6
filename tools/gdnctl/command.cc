#include "tools/gdnctl/command.h"

#include <algorithm>
#include <cstdio>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "tools/gdnctl/completion.h"
#include "tools/gdnctl/connection.h"

ABSL_FLAG(bool, json, false, "Print JSON, with the field names of the API.");
ABSL_FLAG(
    int64_t, epoch, 0,
    "The session's epoch as you know it: the call is refused if a crash or a restore has begun another, whose state "
    "lacks answered steps; 0: any.");
ABSL_FLAG(std::vector<std::string>, session, {}, "Session, by id; for decode one for each row, separated by commas.");

namespace gdn {
namespace {

constexpr std::string_view kCommonFlags[] = {"target", "token",    "token_file", "tls",
                                             "tls_ca", "tls_cert", "tls_key",    "timeout"};
constexpr std::string_view kUsageReason = "BAD_USAGE";
constexpr std::string_view kIntroduction =
    "gdnctl talks to a gdn_server: it shows models and sessions, runs steps on files, moves session states,\n"
    "and replays recorded layers to check a server's answers.\n";
constexpr std::string_view kExitCodes = "Exit codes: 0 ok, 1 failed (or above the tolerance), 2 bad usage.\n";

bool Takes(const Command& command, std::string_view flag) {
  return std::find(std::begin(kCommonFlags), std::end(kCommonFlags), flag) != std::end(kCommonFlags) ||
         std::find(command.flags.begin(), command.flags.end(), flag) != command.flags.end();
}

void AppendFlag(std::string_view name, std::string* text) {
  const absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(AbslView(name));
  const std::string default_value = flag->DefaultValue();
  absl::StrAppendFormat(
      text, "  --%-24s %s%s\n", name, flag->Help(),
      default_value.empty() || default_value == "false" ? "" : StrCat(" Default: ", default_value, "."));
}

std::string Usage(const std::vector<Command>& commands) {
  std::string text = StrCat("Usage: gdnctl COMMAND [--flag=value ...]\n\n", kIntroduction, "\nCommands:\n");
  for (const Command& command : commands) absl::StrAppendFormat(&text, "  %-18s %s\n", command.name, command.summary);
  text += "\nFlags of every command:\n";
  for (const std::string_view flag : kCommonFlags) AppendFlag(flag, &text);
  return StrCat(text, "\n'gdnctl COMMAND --help' tells more; source <(gdnctl completion bash) completes them. ",
                kExitCodes);
}

std::string Usage(const Command& command) {
  std::string text = StrCat("Usage: gdnctl ", command.name, command.flags.empty() ? "" : " [--flag=value ...]",
                            command.arguments.empty() ? "" : " ", command.arguments, "\n\n", command.summary, ".\n",
                            command.details.empty() ? "" : "\n", command.details, "\nFlags:\n");
  for (const std::string_view flag : command.flags) AppendFlag(flag, &text);
  for (const std::string_view flag : kCommonFlags) AppendFlag(flag, &text);
  return StrCat(text, "\n", kExitCodes);
}

// The command whose words `arguments` begin with, the longest name first.
const Command* FindCommand(const std::vector<Command>& commands, const std::vector<std::string>& arguments) {
  const Command* found = nullptr;
  for (const Command& command : commands) {
    const std::vector<std::string> words = absl::StrSplit(AbslView(command.name), ' ');
    if (words.size() <= arguments.size() && std::equal(words.begin(), words.end(), arguments.begin()) &&
        (found == nullptr || command.name.size() > found->name.size())) {
      found = &command;
    }
  }
  return found;
}

struct ParsedArguments {
  std::vector<std::string> positional;
  bool help = false;
};

// Sets the command's flags. absl::ParseCommandLine would take every flag of the program for every command, and exit
// with 1.
absl::StatusOr<ParsedArguments> ParseFlags(const Command& command, const std::vector<std::string>& arguments,
                                           size_t first) {
  ParsedArguments parsed;
  for (size_t i = first; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      parsed.positional.insert(parsed.positional.end(), arguments.begin() + static_cast<ptrdiff_t>(i) + 1,
                               arguments.end());
      break;
    }
    if (argument == "--help" || argument == "-h") {
      parsed.help = true;
      continue;
    }
    if (!absl::StartsWith(argument, "-") || argument == "-") {
      parsed.positional.push_back(argument);
      continue;
    }
    const std::string body = argument.substr(absl::StartsWith(argument, "--") ? 2 : 1);
    const std::pair<std::string, std::string> parts = absl::StrSplit(body, absl::MaxSplits('=', 1));
    const bool has_value = absl::StrContains(argument, '=');
    std::string name = absl::StrReplaceAll(parts.first, {{"-", "_"}});
    std::string value = parts.second;
    if (!has_value && absl::StartsWith(name, "no") && Takes(command, name.substr(2)) &&
        absl::FindCommandLineFlag(name.substr(2))->IsOfType<bool>()) {
      name = name.substr(2);
      value = "false";
    } else if (!Takes(command, name)) {
      return UsageError(StrCat("unknown flag --", name));
    } else if (!has_value) {
      if (absl::FindCommandLineFlag(name)->IsOfType<bool>()) {
        value = "true";
      } else if (i + 1 < arguments.size()) {
        value = arguments[++i];
      } else {
        return UsageError(StrCat("flag --", name, " needs a value"));
      }
    }
    std::string error;
    if (!absl::FindCommandLineFlag(name)->ParseFrom(value, &error)) {
      return UsageError(StrCat("flag --", name, " does not take '", value, "'", error.empty() ? "" : ": ", error));
    }
  }
  if (command.arguments.empty() && !parsed.positional.empty()) {
    return UsageError(StrCat("unexpected argument '", parsed.positional[0], "'"));
  }
  return parsed;
}

// "models/" or "sessions/" before a bare id.
absl::StatusOr<std::string> ResourceName(std::string_view collection, std::string_view flag, std::string_view id) {
  const std::string prefix = StrCat(collection, "/");
  if (id.empty() || id == prefix) return UsageError(StrCat("a name is needed: --", flag));
  return absl::StartsWith(AbslView(id), prefix) ? std::string(id) : StrCat(prefix, id);
}

int Report(std::string_view command, const absl::Status& status) {
  if (ErrorReason(status) == kUsageReason) {
    absl::FPrintF(stderr, "gdnctl: %s\nTry 'gdnctl %s--help'.\n", status.message(),
                  command.empty() ? "" : StrCat(command, " "));
    return kExitUsage;
  }
  const std::string reason = ErrorReason(status);
  std::string line = StrCat("gdnctl: ", absl::StatusCodeToString(status.code()),
                            reason.empty() ? "" : StrCat(" (", reason, ")"), ": ", status.message());
  if (absl::IsUnavailable(status) && reason.empty()) {
    StrAppend(&line, "\nIs a gdn_server listening on ", absl::GetFlag(FLAGS_target), "?");
  }
  absl::FPrintF(stderr, "%s\n", line);
  return kExitFailed;
}

}  // namespace

absl::Status UsageError(std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, kUsageReason, message);
}

int RunCommandLine(const std::vector<Command>& commands, const std::vector<std::string>& arguments) {
  if (!arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help")) {
    absl::PrintF("%s", Usage(commands));
    return kExitOk;
  }
  if (arguments.empty()) {
    absl::FPrintF(stderr, "%s", Usage(commands));
    return kExitUsage;
  }
  if (arguments[0] == "completion") {
    if (arguments != std::vector<std::string>{"completion", "bash"}) {
      return Report("", UsageError("completion is made for bash: gdnctl completion bash"));
    }
    absl::PrintF("%s", BashCompletion(commands, kCommonFlags));
    return kExitOk;
  }
  const Command* const command = FindCommand(commands, arguments);
  if (command == nullptr) {
    // A first word that needs a second, such as "state", is better answered by its own commands.
    std::string alternatives;
    for (const Command& other : commands) {
      if (absl::StartsWith(AbslView(other.name), StrCat(arguments[0], " "))) {
        StrAppend(&alternatives, alternatives.empty() ? "" : ", ", "'", other.name, "'");
      }
    }
    return Report("", UsageError(alternatives.empty() ? StrCat("unknown command '", arguments[0], "'")
                                                      : StrCat("'", arguments[0], "' is one of ", alternatives)));
  }
  const size_t words = static_cast<size_t>(std::count(command->name.begin(), command->name.end(), ' ')) + 1;
  const absl::StatusOr<ParsedArguments> parsed = ParseFlags(*command, arguments, words);
  if (!parsed.ok()) return Report(command->name, parsed.status());
  if (parsed->help) {
    absl::PrintF("%s", Usage(*command));
    return kExitOk;
  }
  if (absl::Status status = PrepareConnection(); !status.ok()) return Report(command->name, status);
  const absl::StatusOr<int> exit_code = command->run(parsed->positional);
  return exit_code.ok() ? *exit_code : Report(command->name, exit_code.status());
}

absl::StatusOr<std::string> ModelName(std::string_view id) { return ResourceName("models", "model", id); }

absl::StatusOr<std::string> SessionName(std::string_view id) { return ResourceName("sessions", "session", id); }

absl::StatusOr<std::vector<std::string>> SessionNames(const std::vector<std::string>& ids) {
  if (ids.empty()) return UsageError("which session? An id is needed");
  std::vector<std::string> names;
  for (const std::string& id : ids) {
    GDN_ASSIGN_OR_RETURN(names.emplace_back(), SessionName(id));
  }
  return names;
}

absl::StatusOr<std::string> OneSession() {
  const std::vector<std::string> ids = absl::GetFlag(FLAGS_session);
  if (ids.size() != 1) return UsageError("--session with one id is needed");
  return SessionName(ids[0]);
}

absl::StatusOr<int64_t> EpochByFlag() {
  const int64_t epoch = absl::GetFlag(FLAGS_epoch);
  if (epoch < 0) return UsageError(StrCat("--epoch is ", epoch, ", expected an epoch, or 0 for any"));
  return epoch;
}

absl::StatusOr<v1::OperatorSpec> ParseOperatorSpec(const std::vector<std::string>& words) {
  constexpr std::string_view kPerChannel = "per-channel";
  std::vector<std::string> numbers = words;
  v1::OperatorSpec spec;
  if (!numbers.empty() && numbers.back() == kPerChannel) {
    spec.set_decay(v1::DECAY_KIND_PER_CHANNEL);
    numbers.pop_back();
  }
  std::vector<int32_t> values;
  for (const std::string& number : numbers) {
    if (!absl::SimpleAtoi(number, &values.emplace_back())) values.clear();
  }
  if (values.size() != numbers.size() || (values.size() != 4 && values.size() != 5)) {
    return UsageError(
        "--operator takes key heads, value heads, key dim, value dim and, optionally, layers and the word per-channel, "
        "for decays by channel: 16,32,128,128 or 16,16,128,128,1,per-channel");
  }
  spec.set_key_heads(values[0]);
  spec.set_value_heads(values[1]);
  spec.set_key_dim(values[2]);
  spec.set_value_dim(values[3]);
  if (values.size() == 5) spec.set_layer_count(values[4]);
  return spec;
}

}  // namespace gdn
