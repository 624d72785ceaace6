// Completion of gdnctl's command line in bash, made of the table that --help prints.
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

}  // namespace gdn
