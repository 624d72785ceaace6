// Says what is wrong with a text that is not JSON, and where.
//
// Thread safety: free functions. Ownership: plain values.
//
//   if (json.is_discarded()) return InvalidArgumentError(StrCat("'", path, "' is not JSON: ", JsonFault(text)));
#pragma once

#include <string>
#include <string_view>

namespace gdn {

// Returns the fault of a text, for example "line 3, column 5: a comment, which JSON does not have; remove it", "it is
// empty", "it is UTF-16 or UTF-32 text, expected UTF-8; .." or kFetchLfsFile. "" if the text is JSON.
std::string JsonFault(std::string_view text);

// Puts the values NaN, Infinity and -Infinity, which Python's json module writes, into quotation marks. Such a field is
// then a string: no error for readers that skip it, and a string of the wrong type for those that read it.
std::string QuoteNonFinite(std::string_view text);

// True if `bytes` is a Git LFS pointer: what Git leaves in place of a large file that was not fetched.
bool IsLfsPointer(std::string_view bytes);
inline constexpr std::string_view kFetchLfsFile =
    "it is a Git LFS pointer and not the file itself; run 'git lfs pull' in its folder";

}  // namespace gdn
