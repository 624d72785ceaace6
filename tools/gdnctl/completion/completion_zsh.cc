// How gdnctl completes in zsh: tables of words and flags, and a function that reads them.
#include <map>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/string_cat.h"
#include "tools/gdnctl/completion/completion.h"

namespace gdn {
namespace {

constexpr std::string_view kQuote = "'\\''";

// The function below the tables. `words` and CURRENT are zsh's.
constexpr std::string_view kZshFunction = R"(
  local word current="${words[CURRENT]}"
  local -a given offered plain valued
  for word in "${(@)words[2,CURRENT-1]}"; do
    [[ "${word}" == -* ]] || given+=("${word}")
  done
  if [[ "${current}" == --*=* ]]; then
    compset -P '*='
    _files
  elif [[ "${current}" == -* ]]; then
    offered=(${=flags[${given[1]} ${given[2]}]:-${flags[${given[1]}]}} ${=common} --help)
    plain=(${offered:#*=})
    valued=(${(M)offered:#*=})
    compadd -- "${plain[@]}"
    compadd -S '' -- "${valued[@]}"
  elif (( ${#given} == 0 )); then
    _describe 'command' firsts
  elif (( ${#given} == 1 )); then
    offered=(${(f)seconds[${given[1]}]})
    (( ${#offered} == 0 )) || _describe 'command' offered
  fi
}
if [[ "${zsh_eval_context[-1]}" == loadautofunc ]]; then
  _gdnctl "$@"
else
  compdef _gdnctl gdnctl
fi
)";

}  // namespace

std::string ZshCompletion(const std::vector<Command>& commands, absl::Span<const std::string_view> common_flags) {
  // The first word of commands of two words stands for all of them.
  std::map<std::string, std::string> firsts = {{"completion", "Print what completes command lines in a shell"},
                                               {"help", "Show the commands, or more of one"},
                                               {"version", "Show the version of this program"}};
  std::map<std::string, std::vector<std::string>> seconds = {{"completion", {"bash:", "zsh:", "fish:"}}};
  std::string flags;
  for (const Command& command : commands) {
    const std::vector<std::string> words = absl::StrSplit(AbslView(command.name), ' ');
    if (words.size() == 1) firsts[words[0]] = command.summary;
    if (words.size() > 1) {
      firsts.emplace(words[0], StrCat("Several commands; 'gdnctl help ", words[0], "' lists them"));
      seconds[words[0]].push_back(StrCat(words[1], ":", command.summary));
    }
    std::vector<std::string> typed;
    for (const std::string_view flag : command.flags) typed.push_back(FlagWord(flag));
    if (!typed.empty()) StrAppend(&flags, "    '", command.name, "' '", absl::StrJoin(typed, " "), "'\n");
  }
  std::string first_lines, second_lines;
  for (const auto& [word, summary] : firsts) {
    StrAppend(&first_lines, "    ", InQuotes(StrCat(word, ":", summary), kQuote), "\n");
  }
  for (const auto& [word, lines] : seconds) {
    StrAppend(&second_lines, "    '", word, "' ", InQuotes(absl::StrJoin(lines, "\n"), kQuote), "\n");
  }
  std::vector<std::string> common;
  for (const std::string_view flag : common_flags) common.push_back(FlagWord(flag));
  return StrCat("#compdef gdnctl\n# Completion of gdnctl in zsh: source <(gdnctl completion zsh)\n_gdnctl() {\n",
                "  local common='", absl::StrJoin(common, " "), "'\n  local -a firsts=(\n", first_lines,
                "  )\n  local -A seconds=(\n", second_lines, "  )\n  local -A flags=(\n", flags, "  )", kZshFunction);
}

}  // namespace gdn
