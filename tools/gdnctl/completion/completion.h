// Makes completion scripts of gdnctl for bash, zsh and fish, from the table of commands that --help prints.
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

// Returns a bash script that defines _gdnctl and registers it with `complete`. It completes commands, their second
// words, their flags, and file names after a flag's '='. `common_flags`: the flags of every command.
std::string BashCompletion(const std::vector<Command>& commands, absl::Span<const std::string_view> common_flags);
// Returns a script for zsh, with the commands' summaries. It may also be a file _gdnctl in a folder of $fpath.
std::string ZshCompletion(const std::vector<Command>& commands, absl::Span<const std::string_view> common_flags);
// Returns a script for fish, with summaries and the flags' help.
std::string FishCompletion(const std::vector<Command>& commands, absl::Span<const std::string_view> common_flags);

// Returns a flag as it is typed: "--json", or "--target=" if it needs a value. The program must have a flag of this
// name.
std::string FlagWord(std::string_view flag);
// Returns `text` in single quotes, with each single quote in it replaced by `quote`.
std::string InQuotes(std::string_view text, std::string_view quote);

}  // namespace gdn
