#include "tools/gdnctl/command.h"

#include <algorithm>
#include <cstdio>
#include <initializer_list>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/version/version.h"
#include "tools/common/tool_flags.h"
#include "tools/gdnctl/completion/completion.h"
#include "tools/gdnctl/connection.h"
#include "tools/gdnctl/connection_trouble.h"

ABSL_FLAG(bool, json, false, "Print JSON, with the field names of the API.");
ABSL_FLAG(int64_t, epoch, 0,
          "The session's epoch as you know it. The call is refused if a crash or a restore has started a new epoch, "
          "whose state lacks answered steps. 0: any epoch.");
ABSL_FLAG(std::vector<std::string>, session, {},
          "Id of the session. For decode: one id for each row, separated by commas.");

namespace gdn {
namespace {

constexpr std::string_view kCommonFlags[] = {"target", "token",    "token_file", "tls",
                                             "tls_ca", "tls_cert", "tls_key",    "timeout"};
constexpr std::string_view kUsageReason = "BAD_USAGE";
constexpr std::string_view kIntroduction =
    "gdnctl is a client of gdn_server. It shows models and sessions, runs steps on files, moves session states,\n"
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
  return StrCat(text, "\n'gdnctl help COMMAND' tells more; source <(gdnctl completion bash) completes them.\n",
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

// "models/", "sessions/" or "leases/" before a bare id.
absl::StatusOr<std::string> ResourceName(std::string_view collection, std::string_view flag, std::string_view id) {
  const std::string prefix = StrCat(collection, "/");
  if (id.empty() || id == prefix) return UsageError(StrCat("a name is needed: --", flag));
  return absl::StartsWith(AbslView(id), prefix) ? std::string(id) : StrCat(prefix, id);
}

// The commands that begin with this word and have another: "state" has "state export" and so on.
std::vector<const Command*> CommandsUnder(const std::vector<Command>& commands, std::string_view word) {
  std::vector<const Command*> under;
  for (const Command& command : commands) {
    if (absl::StartsWith(AbslView(command.name), StrCat(word, " "))) under.push_back(&command);
  }
  return under;
}

// Names the commands that were probably meant: those of the same first word, else the nearest.
absl::Status UnknownCommand(const std::vector<Command>& commands, const std::vector<std::string>& arguments) {
  std::string words = arguments[0];
  if (arguments.size() > 1 && !absl::StartsWith(arguments[1], "-")) StrAppend(&words, " ", arguments[1]);
  const std::vector<const Command*> under = CommandsUnder(commands, arguments[0]);
  if (words == arguments[0] && !under.empty()) {
    std::string alternatives;
    for (const Command* command : under) {
      StrAppend(&alternatives, alternatives.empty() ? "" : ", ", "'", command->name, "'");
    }
    return UsageError(StrCat("'", words, "' needs one more word: ", alternatives));
  }
  std::vector<std::string_view> names = {"help", "version", "completion"};
  for (const Command& command : commands) names.push_back(command.name);
  std::string nearest = NearestName(words, names);
  if (nearest.empty()) nearest = NearestName(arguments[0], names);
  words.resize(std::min<size_t>(words.size(), 100));
  return UsageError(
      StrCat("unknown command '", words, "'",
             nearest.empty() ? StrCat("; 'gdnctl help' lists all") : StrCat("; did you mean '", nearest, "'?")));
}

// The next step that a person can take after a refusal; "" if its message says it all.
std::string_view NextStep(std::string_view reason) {
  if (reason == reason::kSessionNotFound) {
    return "'gdnctl sessions list' shows your sessions; 'gdnctl sessions create --model=NAME --id=ID' makes one";
  }
  if (reason == reason::kLeaseNotFound) return "'gdnctl leases list' shows your leases on this server";
  if (reason == reason::kModelNotFound) return "'gdnctl models' shows what the server has";
  if (reason == reason::kCheckpointNotFound)
    return "'gdnctl checkpoints list --session=ID' shows the named checkpoints";
  if (reason == reason::kSessionExists) return "'gdnctl sessions show ID' shows the session that has this id";
  return "";
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
    line =
        StrCat("gdnctl: UNAVAILABLE: ", ConnectionTrouble(absl::GetFlag(FLAGS_target), std::string(status.message())));
  } else if (absl::IsUnimplemented(status) && reason.empty()) {
    StrAppend(
        &line, "\n", absl::GetFlag(FLAGS_target),
        " has answered, but not as this gdn_server would: see whether --target names another program, or a proxy");
  }
  if (const std::string_view next = NextStep(reason); !next.empty()) StrAppend(&line, "\n", next);
  absl::FPrintF(stderr, "%s\n", line);
  return kExitFailed;
}

bool Asks(std::string_view argument, std::initializer_list<std::string_view> forms) {
  return std::find(forms.begin(), forms.end(), argument) != forms.end();
}

// Prints the help of all commands, of one, or of those that begin with a word.
int PrintHelp(const std::vector<Command>& commands, const std::vector<std::string>& words) {
  if (words.empty()) {
    absl::PrintF("%s", Usage(commands));
    return kExitOk;
  }
  const std::string name = absl::StrJoin(words, " ");
  const auto exact = std::find_if(commands.begin(), commands.end(), [&](const Command& c) { return c.name == name; });
  const std::vector<const Command*> under = CommandsUnder(commands, name);
  if (exact == commands.end() && under.empty()) return Report("", UnknownCommand(commands, words));
  if (exact != commands.end()) absl::PrintF("%s", Usage(*exact));
  if (!under.empty()) absl::PrintF("%sCommands of '%s':\n", exact == commands.end() ? "" : "\n", name);
  for (const Command* command : under) absl::PrintF("  %-18s %s\n", command->name, command->summary);
  return kExitOk;
}

int PrintCompletion(const std::vector<Command>& commands, const std::vector<std::string>& arguments) {
  const std::string shell = arguments.size() == 2 ? arguments[1] : "";
  if (shell == "bash") {
    absl::PrintF("%s", BashCompletion(commands, kCommonFlags));
  } else if (shell == "zsh") {
    absl::PrintF("%s", ZshCompletion(commands, kCommonFlags));
  } else if (shell == "fish") {
    absl::PrintF("%s", FishCompletion(commands, kCommonFlags));
  } else {
    return Report("", UsageError("completion needs a shell: gdnctl completion bash, zsh or fish"));
  }
  return kExitOk;
}

}  // namespace

absl::Status UsageError(std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, kUsageReason, message);
}

int RunCommandLine(const std::vector<Command>& commands, const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    absl::FPrintF(stderr, "%s", Usage(commands));
    return kExitUsage;
  }
  if (Asks(arguments[0], {"--help", "-help", "-h", "help"})) {
    return PrintHelp(commands, {arguments.begin() + 1, arguments.end()});
  }
  if (Asks(arguments[0], {"--version", "-version", "version"})) {
    absl::PrintF("%s", VersionText("gdnctl"));
    return kExitOk;
  }
  if (arguments[0] == "completion") return PrintCompletion(commands, arguments);
  const Command* const command = FindCommand(commands, arguments);
  if (command == nullptr) {
    const bool only_help = arguments.size() == 2 && Asks(arguments[1], {"--help", "-help", "-h"});
    return only_help && !CommandsUnder(commands, arguments[0]).empty()
               ? PrintHelp(commands, {arguments[0]})
               : Report("", UnknownCommand(commands, arguments));
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
  if (line->version) {
    absl::PrintF("%s", VersionText("gdnctl"));
    return kExitOk;
  }
  if (command->arguments.empty() && !line->positional.empty()) {
    if (!CommandsUnder(commands, command->name).empty()) return Report("", UnknownCommand(commands, arguments));
    return Report(command->name, UsageError(StrCat("unexpected argument '", line->positional[0], "'")));
  }
  if (absl::Status status = PrepareConnection(); !status.ok()) return Report(command->name, status);
  const absl::StatusOr<int> exit_code = command->run(line->positional);
  return exit_code.ok() ? *exit_code : Report(command->name, exit_code.status());
}

absl::StatusOr<std::string> ToModelName(std::string_view id) { return ResourceName("models", "model", id); }

absl::StatusOr<std::string> ToSessionName(std::string_view id) { return ResourceName("sessions", "session", id); }

absl::StatusOr<std::string> ToLeaseName(std::string_view id) { return ResourceName("leases", "lease", id); }

absl::StatusOr<std::vector<std::string>> SessionNames(const std::vector<std::string>& ids) {
  if (ids.empty()) return UsageError("which session? An id is needed");
  std::vector<std::string> names;
  for (const std::string& id : ids) {
    GDN_ASSIGN_OR_RETURN(names.emplace_back(), ToSessionName(id));
  }
  return names;
}

absl::StatusOr<std::string> OneSession() {
  const std::vector<std::string> ids = absl::GetFlag(FLAGS_session);
  if (ids.size() != 1) return UsageError("--session with one id is needed");
  return ToSessionName(ids[0]);
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
