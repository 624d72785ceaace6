#include "tools/gdnctl/command.h"

#include <algorithm>
#include <cstdio>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/error.h"
#include "base/flags/command_flags.h"
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

std::string Usage(const std::vector<Command>& commands) {
  std::string text = StrCat("Usage: gdnctl COMMAND [--flag=value ...]\n\n", kIntroduction, "\nCommands:\n");
  for (const Command& command : commands) absl::StrAppendFormat(&text, "  %-18s %s\n", command.name, command.summary);
  text += "\nFlags of every command:\n";
  for (const std::string_view flag : kCommonFlags) text += FlagHelp(*absl::FindCommandLineFlag(AbslView(flag)));
  return StrCat(text, "\n'gdnctl COMMAND --help' tells more; source <(gdnctl completion bash) completes them. ",
                kExitCodes);
}

std::string Usage(const Command& command) {
  std::string text = StrCat("Usage: gdnctl ", command.name, command.flags.empty() ? "" : " [--flag=value ...]",
                            command.arguments.empty() ? "" : " ", command.arguments, "\n\n", command.summary, ".\n",
                            command.details.empty() ? "" : "\n", command.details, "\nFlags:\n");
  for (const std::string_view flag : command.flags) text += FlagHelp(*absl::FindCommandLineFlag(AbslView(flag)));
  for (const std::string_view flag : kCommonFlags) text += FlagHelp(*absl::FindCommandLineFlag(AbslView(flag)));
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
  if (!arguments.empty() &&
      (arguments[0] == "--help" || arguments[0] == "-help" || arguments[0] == "-h" || arguments[0] == "help")) {
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
  const absl::StatusOr<CommandFlags> line =
      SetFlags({arguments.begin() + static_cast<std::ptrdiff_t>(words), arguments.end()},
               [command](const absl::CommandLineFlag& flag) {
                 return Takes(*command, {flag.Name().data(), flag.Name().size()});
               });
  if (!line.ok()) return Report(command->name, UsageError(StrCat(line.status().message())));
  if (line->help) {
    absl::PrintF("%s", Usage(*command));
    return kExitOk;
  }
  if (line->version) return Report(command->name, UsageError("unknown flag --version; gdnctl info prints versions"));
  if (command->arguments.empty() && !line->positional.empty()) {
    return Report(command->name, UsageError(StrCat("unexpected argument '", line->positional[0], "'")));
  }
  if (absl::Status status = PrepareConnection(); !status.ok()) return Report(command->name, status);
  const absl::StatusOr<int> exit_code = command->run(line->positional);
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
