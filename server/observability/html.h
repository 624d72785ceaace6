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

// Returns the text, escaped for an element's content and for an attribute in quotation marks. Control characters and
// bytes that are not UTF-8 become a replacement character.
std::string EscapeHtml(std::string_view text);
// Returns the first `most` characters (not bytes) of the text, escaped. If something was cut, an ellipsis follows.
std::string EscapeHtml(std::string_view text, size_t most);

std::string ShowBytes(int64_t bytes);            // "1.50 GiB", three digits in a unit of 1024; "700 B" below 1 KiB
std::string ShowNumber(double value);            // "12.3 k", three digits; whole numbers below 10000 in full
std::string ShowDuration(absl::Duration value);  // "4.20 ms", "3 d 4 h"

}  // namespace gdn
