// How gdnctl completes in fish: a line for each word and each flag.
#include <set>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/string_cat.h"
#include "tools/gdnctl/completion/completion.h"

namespace gdn {
namespace {

// True if the words before the cursor, flags left out, are these alone, or begin with these.
constexpr std::string_view kFunctions = R"fish(# Completion of gdnctl in fish: gdnctl completion fish | source
function __gdnctl_given
    set -l given
    for word in (commandline -opc)[2..]
        string match -q -- '-*' $word; or set -a given $word
    end
    echo "$given"
end
function __gdnctl_at
    set -l given (__gdnctl_given)
    test "$given" = "$argv"
end
function __gdnctl_in
    string match -q -- "$argv *" (__gdnctl_given)" "
end
complete -c gdnctl -f
complete -c gdnctl -l help -d 'Show how to call it'
)fish";

// fish knows \\ and \' between single quotes.
std::string Quoted(std::string_view text) {
  return InQuotes(absl::StrReplaceAll(AbslView(text), {{"\\", "\\\\"}}), "\\'");
}

// The first sentence of a flag's help, which fits on a line.
std::string ShortHelp(std::string_view flag) {
  const std::string help = absl::FindCommandLineFlag(AbslView(flag))->Help();
  return help.substr(0, help.find(". "));
}

void AddFlag(std::string* script, std::string_view condition, std::string_view flag) {
  const std::string word = FlagWord(flag);
  const bool takes_value = word.back() == '=';
  StrAppend(script, "complete -c gdnctl", condition, " -l ", word.substr(2, word.size() - (takes_value ? 3 : 2)),
            takes_value ? " -r -F" : "", " -d ", Quoted(ShortHelp(flag)), "\n");
}

void AddWord(std::string* script, std::string_view after, std::string_view word, std::string_view summary) {
  StrAppend(script, "complete -c gdnctl -n '__gdnctl_at", after.empty() ? "" : " ", after, "' -a ", word, " -d ",
            Quoted(summary), "\n");
}

}  // namespace

std::string FishCompletion(const std::vector<Command>& commands, absl::Span<const std::string_view> common_flags) {
  std::string script(kFunctions);
  AddWord(&script, "", "help", "Show the commands, or more of one");
  AddWord(&script, "", "version", "Show the version of this program");
  AddWord(&script, "", "completion", "Print what completes command lines in a shell");
  for (const std::string_view shell : {"bash", "zsh", "fish"}) AddWord(&script, "completion", shell, "Shell");
  std::set<std::string> alone;
  for (const Command& command : commands) {
    if (command.name.find(' ') == std::string_view::npos) alone.emplace(command.name);
  }
  for (const Command& command : commands) {
    const std::vector<std::string> words = absl::StrSplit(AbslView(command.name), ' ');
    if (words.size() == 1) AddWord(&script, "", words[0], command.summary);
    if (words.size() > 1) AddWord(&script, words[0], words[1], command.summary);
    if (words.size() > 1 && alone.insert(words[0]).second) {
      AddWord(&script, "", words[0], StrCat("Several commands; see help ", words[0]));
    }
    for (const std::string_view flag : command.flags) {
      AddFlag(&script, StrCat(" -n '__gdnctl_in ", command.name, "'"), flag);
    }
  }
  for (const std::string_view flag : common_flags) AddFlag(&script, "", flag);
  return script;
}

}  // namespace gdn
