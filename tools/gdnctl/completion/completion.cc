#include "tools/gdnctl/completion/completion.h"

#include <map>
#include <set>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

// "--json --target=": a flag that needs a value ends in '='.
std::string FlagWords(absl::Span<const std::string_view> flags) {
  std::vector<std::string> words;
  for (const std::string_view name : flags) words.push_back(FlagWord(name));
  return absl::StrJoin(words, " ");
}

// What follows the words, and which flags they take.
constexpr std::string_view kBashFunction = R"(
  local word words=()
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ "${word}" == -* ]] || words+=("${word}")
  done
  local current="${COMP_WORDS[COMP_CWORD]}" pair="${words[0]:-} ${words[1]:-}" first="${words[0]:-}"
  if [[ "${current}" == '=' || "${COMP_WORDS[COMP_CWORD-1]}" == '=' ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "${current#=}")
  elif [[ "${current}" == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "${flags[${pair}]:-${flags[${first}]:-}} ${common} --help" -- "${current}")
    if [[ "${COMPREPLY[0]:-}" == *= ]]; then compopt -o nospace 2>/dev/null; fi
  elif (( ${#words[@]} == 0 )); then
    mapfile -t COMPREPLY < <(compgen -W "${firsts}" -- "${current}")
  elif (( ${#words[@]} == 1 )); then
    mapfile -t COMPREPLY < <(compgen -W "${seconds[${first}]:-}" -- "${current}")
  fi
}
complete -F _gdnctl gdnctl
)";

}  // namespace

std::string FlagWord(std::string_view flag) {
  const bool is_switch = absl::FindCommandLineFlag(AbslView(flag))->IsOfType<bool>();
  return StrCat("--", absl::StrReplaceAll(AbslView(flag), {{"_", "-"}}), is_switch ? "" : "=");
}

std::string InQuotes(std::string_view text, std::string_view quote) {
  return StrCat("'", absl::StrReplaceAll(AbslView(text), {{"'", AbslView(quote)}}), "'");
}

std::string BashCompletion(const std::vector<Command>& commands, absl::Span<const std::string_view> common_flags) {
  std::set<std::string> firsts = {"completion", "help", "version"};
  std::map<std::string, std::vector<std::string>> seconds = {{"completion", {"bash", "zsh", "fish"}}};
  std::string flags;
  for (const Command& command : commands) {
    const std::vector<std::string> words = absl::StrSplit(AbslView(command.name), ' ');
    firsts.insert(words[0]);
    if (words.size() > 1) seconds[words[0]].push_back(words[1]);
    if (!command.flags.empty()) StrAppend(&flags, "    ['", command.name, "']='", FlagWords(command.flags), "'\n");
  }
  std::string follow;
  for (const auto& [first, second] : seconds) {
    StrAppend(&follow, "    ['", first, "']='", absl::StrJoin(second, " "), "'\n");
  }
  return StrCat("# Completion of gdnctl in bash: source <(gdnctl completion bash)\n_gdnctl() {\n  local firsts='",
                absl::StrJoin(firsts, " "), "'\n  local common='", FlagWords(common_flags), "'\n  local -A seconds=(\n",
                follow, "  )\n  local -A flags=(\n", flags, "  )", kBashFunction);
}

}  // namespace gdn
