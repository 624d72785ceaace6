// Text and numbers as they stand in a page for people.
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

// Fit for an element's content and for an attribute in quotation marks; what is no UTF-8 and control characters become
// a replacement character.
std::string EscapeHtml(std::string_view text);
// Cut to so many characters, with an ellipsis where that cut something; then escaped.
std::string EscapeHtml(std::string_view text, size_t most);

std::string ShowBytes(int64_t bytes);            // "1.5 GiB"
std::string ShowNumber(double value);            // "12.3 k"
std::string ShowDuration(absl::Duration value);  // "4.2 ms", "3 d 4 h"

}  // namespace gdn
