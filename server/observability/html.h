// Formats text and numbers for pages that people read.
//
// Thread safety: free functions.
//
//   StrCat("<td>", EscapeHtml(name), "</td><td>", ShowBytes(used), "</td>")
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace gdn {

// Escapes text for an element's content and for an attribute in quotation marks. Control characters and bytes that are
// not UTF-8 become a replacement character.
std::string EscapeHtml(std::string_view text);
// Cuts the text to `most` characters, and escapes it. If something was cut, an ellipsis follows.
std::string EscapeHtml(std::string_view text, size_t most);

std::string ShowBytes(int64_t bytes);            // "1.5 GiB"
std::string ShowNumber(double value);            // "12.3 k"
std::string ShowDuration(absl::Duration value);  // "4.2 ms", "3 d 4 h"

}  // namespace gdn
