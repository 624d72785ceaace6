// Completion of gdnctl's command line in bash, zsh and fish, made of the table that --help prints.
//
// Thread safety: free functions. Ownership: none.
//
//   absl::PrintF("%s", BashCompletion(commands, common_flags));  // source <(gdnctl completion bash)
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "tools/gdnctl/command.h"

namespace gdn {

// A script that defines the function _gdnctl and gives it to `complete`: commands, their second words, their flags, and
// files after a flag's '='. `common_flags` are those of every command.
std::string BashCompletion(const std::vector<Command>& commands, absl::Span<const std::string_view> common_flags);
// The same for zsh, with the commands' summaries: the file may also lie in a folder of $fpath, as _gdnctl.
std::string ZshCompletion(const std::vector<Command>& commands, absl::Span<const std::string_view> common_flags);
// The same for fish, with summaries and the flags' help.
std::string FishCompletion(const std::vector<Command>& commands, absl::Span<const std::string_view> common_flags);

// A flag as it is typed: "--json", and "--target=" if it needs a value.
std::string FlagWord(std::string_view flag);
// `text` between single quotes, in which a shell's other quotes have no meaning; a quote in it becomes `quote`.
std::string InQuotes(std::string_view text, std::string_view quote);

}  // namespace gdn
